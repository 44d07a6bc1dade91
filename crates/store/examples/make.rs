//! Makes kernels and images by hand: `make kernel newest|stable DIR`, `make debian DIR SUITE PACKAGE...`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use forkd_store::make::{DebianImage, KernelSource, debian_image, fetch_kernel};

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let start = Instant::now();
    let mut say = |line: &str| println!("{:7.2}s {line}", start.elapsed().as_secs_f64());
    match words.as_slice() {
        ["kernel", which, cache] => {
            let source = if *which == "stable" { KernelSource::Stable } else { KernelSource::Newest };
            let made = fetch_kernel(source, Path::new(cache), &mut say)?;
            say(&format!("{made:?}"));
        }
        ["debian", cache, suite, packages @ ..] => {
            let image = DebianImage {
                suite: (*suite).to_owned(),
                packages: packages.iter().map(|p| (*p).to_owned()).collect(),
                size_bytes: 2 << 30,
                cache: PathBuf::from(cache),
            };
            let made = debian_image(&image, &mut say)?;
            say(&format!("{made:?}"));
        }
        _ => println!("make kernel newest|stable CACHE | make debian CACHE SUITE PACKAGE..."),
    }
    Ok(())
}
