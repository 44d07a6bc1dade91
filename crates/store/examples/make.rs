//! Makes kernels and images by hand, and puts an image into a store; shows how long each takes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use forkd_store::make::{DebianImage, KernelSource, TarImage, debian_image, fetch_kernel, import_tar};
use forkd_store::{Store, write_sparse};

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
        ["import", tar, out] => {
            let image = TarImage { tar: PathBuf::from(tar), size_bytes: 2 << 30, out: PathBuf::from(out) };
            let made = import_tar(&image, &mut say)?;
            say(&format!("{made:?}"));
        }
        ["put", root, name, path] => {
            let store = Store::open(Path::new(root))?;
            let mut draft = store.begin_image(&name.parse()?, path)?;
            write_sparse(Path::new(path), &mut draft)?;
            say("written");
            let image = draft.publish()?;
            say(&format!("{image:?}"));
        }
        _ => println!(
            "make kernel newest|stable CACHE | debian CACHE SUITE PACKAGE... | import TAR OUT | put ROOT NAME FILE"
        ),
    }
    Ok(())
}
