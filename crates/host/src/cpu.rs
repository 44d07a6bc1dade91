//! The processor.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// Its maker as CPUID has it, such as `AuthenticAMD`; `None` where the kernel does not say.
pub fn vendor() -> Option<String> {
    vendor_in(BufReader::new(File::open("/proc/cpuinfo").ok()?))
}

fn vendor_in(cpuinfo: impl BufRead) -> Option<String> {
    cpuinfo.lines().map_while(Result::ok).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "vendor_id").then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_is_found_where_it_is_told() {
        let told = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n";
        assert_eq!(vendor_in(told.as_bytes()).as_deref(), Some("GenuineIntel"));
        assert_eq!(vendor_in(&b"processor : 0\n"[..]), None);
    }
}
