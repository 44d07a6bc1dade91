//! May this test run here?

use std::io::Write;

/// True where `/dev/kvm` opens. Says why not, and panics where `FORKD_TEST_REQUIRE` contains `kvm`.
///
/// # Panics
/// KVM is demanded and absent.
pub fn kvm() -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    met("kvm", opened.map(drop).map_err(|e| format!("/dev/kvm: {e}")))
}

/// Reports whether a need is met.
///
/// # Panics
/// It is not met but demanded.
#[expect(clippy::panic, reason = "a demanded test that cannot run must fail, not pass")]
pub fn met(need: &str, found: Result<(), String>) -> bool {
    let Err(why) = found else { return true };
    let demanded = std::env::var("FORKD_TEST_REQUIRE").unwrap_or_default();
    if demanded.split(',').any(|word| word == need) {
        panic!("{need} is demanded but not there: {why}");
    }
    // A loud line on the real standard error, which the test harness does not capture.
    let _ = writeln!(std::io::stderr(), "SKIPPED: needs {need}: {why}");
    false
}
