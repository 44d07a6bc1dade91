//! The host's name servers.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::ResolveHosts;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;

/// How long it is believed that the list of servers has not changed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(3);

/// Asks whom the host asks.
#[derive(Debug)]
pub(in crate::net) struct Upstream {
    /// Lists the servers.
    path: PathBuf,
    known: Mutex<Option<Known>>,
}

#[derive(Clone)]
struct Known {
    resolver: TokioResolver,
    written: Option<SystemTime>,
    looked: Instant,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").field("written", &self.written).finish_non_exhaustive()
    }
}

impl Upstream {
    /// The servers that a file in the form of /etc/resolv.conf lists, whenever it changes.
    pub(in crate::net) fn listed_in(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), known: Mutex::default() }
    }

    /// Something to ask, where the file lists servers.
    pub(super) fn resolver(&self) -> Option<TokioResolver> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| known.looked.elapsed() < LOOK_AGAIN) {
            return Some(known.resolver.clone());
        }
        let written = fs::metadata(&self.path).and_then(|file| file.modified()).ok();
        match known.as_mut() {
            Some(known) if known.written == written => known.looked = Instant::now(),
            _ => {
                let resolver = self.read()?;
                *known = Some(Known { resolver, written, looked: Instant::now() });
            }
        }
        known.as_ref().map(|known| known.resolver.clone())
    }

    fn read(&self) -> Option<TokioResolver> {
        let (config, mut options) = parse_resolv_conf(fs::read(&self.path).ok()?).ok()?;
        options.timeout = TIMEOUT;
        options.attempts = 2;
        // What one sandbox asked must not show in how fast another one is answered.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.preserve_intermediates = true;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        builder.build().ok()
    }
}
