//! The controller under test, what is stored in it once for all tests, and who may use it at the same time.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use forkd_protocol::rest::{ImageInfo, KernelInfo, SnapshotInfo};

use super::{forkd, get};

/// The image of all tests: Debian with Python and numpy.
pub(crate) const IMAGE: &str = "py";
/// A snapshot whose interpreter has imported numpy, random and uuid.
pub(crate) const NUMPY: &str = "e2e-numpy";
/// A snapshot without a warm interpreter.
pub(crate) const BARE: &str = "e2e-bare";

static USERS: RwLock<()> = RwLock::new(());

/// Where the controller is.
pub(crate) fn url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| {
        std::env::var("FORKD_URL").expect("FORKD_URL names a controller; packaging/run-tests.py starts one")
    })
}

/// The command under test.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("FORKD_LIBEXEC").map(PathBuf::from);
    let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.to_owned());
    named.or_else(beside).expect("the folder of the programs").join("forkd")
}

/// For a test that gets on with others.
pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    let users = USERS.read().unwrap_or_else(PoisonError::into_inner);
    prepare();
    users
}

/// For a test that others would disturb, or that disturbs others.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    let users = USERS.write().unwrap_or_else(PoisonError::into_inner);
    prepare();
    users
}

/// The large count where the tests run for long, else the small one; says which.
pub(crate) fn at_soak<T: std::fmt::Debug>(what: &str, soak: T, usual: T) -> T {
    let count = if soaking() { soak } else { usual };
    // The real standard error, which the test harness does not capture.
    let _ = writeln!(std::io::stderr(), "count of {what}: {count:?}");
    count
}

fn soaking() -> bool {
    std::env::var_os("FORKD_SOAK").is_some_and(|s| s == "1")
}

/// A bound that only what hangs reaches.
pub(crate) fn hangs() -> Duration {
    Duration::from_secs(if soaking() { 7200 } else { 600 })
}

/// Looks again and again until there is something to see.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < hangs(), "not within {:?}: {what}", hangs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Looks again and again until what is seen is what is expected.
pub(crate) fn becomes<T: PartialEq + std::fmt::Debug>(expected: &T, mut look: impl FnMut() -> T) {
    let began = Instant::now();
    while look() != *expected {
        if began.elapsed() > hangs() {
            assert_eq!(look(), *expected, "still, after {:?}", hangs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes sure of [`NUMPY`].
pub(crate) fn numpy() -> &'static str {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| ensure_snapshot(NUMPY, &["--warm", "import numpy, random, uuid"]));
    NUMPY
}

/// Makes sure of [`BARE`].
pub(crate) fn bare() -> &'static str {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| ensure_snapshot(BARE, &[]));
    BARE
}

/// Kernel and image.
fn prepare() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        if get("/v1/kernels").parsed::<Vec<KernelInfo>>().is_empty() {
            forkd(&["kernel", "fetch"]).ok();
        }
        let images: Vec<ImageInfo> = get("/v1/images").parsed();
        if !images.iter().any(|i| i.name == IMAGE) {
            let packages = "python3-minimal,python3-numpy,bash";
            forkd(&["image", "build", IMAGE, "--debian", "bookworm", "--packages", packages]).ok();
        }
    });
}

fn ensure_snapshot(tag: &str, more: &[&str]) {
    let snapshots: Vec<SnapshotInfo> = get("/v1/snapshots").parsed();
    if !snapshots.iter().any(|s| s.tag == tag) {
        forkd(&[&["snapshot", "--image", IMAGE, "--tag", tag], more].concat()).ok();
    }
}
