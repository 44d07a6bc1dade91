//! What sandboxes use, and what there is room for.

use forkd_host::memory::{memory_use, page_tables};
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{AllStats, HostRoom, SandboxStats};
use futures::{StreamExt, stream};

use crate::admission;
use crate::engine::{Engine, blocking};
use crate::error::EngineError;
use crate::sandbox::{Handle, SandboxError};

/// How many sandboxes are looked at side by side: each costs a walk through its page tables.
const AT_ONCE: usize = 4;

impl Engine {
    /// What a sandbox uses right now.
    ///
    /// # Errors
    /// It does not run.
    pub async fn stats(&self, id: &SandboxId) -> Result<SandboxStats, EngineError> {
        let handle = self.shared.registry.get(id)?;
        handle.check_running()?;
        self.stats_of(handle).await
    }

    /// What each sandbox that runs uses, and what there is room for. One that ends meanwhile is left out.
    pub async fn all_stats(&self) -> AllStats {
        let running = self.shared.registry.all().into_iter().filter(|h| h.check_running().is_ok());
        let looking = stream::iter(running.map(|handle| self.stats_of(handle))).buffered(AT_ONCE);
        let sandboxes = looking.filter_map(|stats| async { stats.ok() }).collect().await;
        AllStats { room: self.host_room(), sandboxes }
    }

    /// What there is room for.
    pub fn host_room(&self) -> HostRoom {
        admission::room(&self.shared)
    }

    async fn stats_of(&self, handle: Handle) -> Result<SandboxStats, EngineError> {
        let (pid, policing) = {
            let view = handle.view.borrow();
            (view.info.pid.unwrap_or_default(), view.policing.clone())
        };
        let cgroups = self.shared.launcher.cgroups().clone();
        // Layers and views; nothing else below the root is mapped.
        let (root, dir) = (self.root().to_owned(), handle.dir.clone());
        let looking = blocking(move || -> std::io::Result<_> {
            let usage = dir.noted_cgroup(&cgroups).map(|leaf| leaf.usage()).unwrap_or_default();
            let traffic = policing.and_then(|policing| policing.traffic());
            Ok((memory_use(pid, &root)?, page_tables(pid)?, usage, traffic))
        });
        let looked = looking.await?;
        // The pid was its own while it was read, since it is not reaped before it is shown as ended.
        handle.check_running()?;
        let (used, page_table_bytes, usage, net) = looked.map_err(|e| SandboxError::Unreadable {
            what: "memory use",
            id: handle.id.to_string(),
            reason: e.to_string(),
        })?;
        Ok(SandboxStats {
            id: handle.id.to_string(),
            monitor_private_bytes: used.monitor_private,
            guest_private_bytes: used.guest_private,
            guest_shared_bytes: used.guest_shared,
            page_table_bytes,
            memory_charged_bytes: usage.memory_bytes,
            memory_limit_bytes: usage.memory_max_bytes,
            cpu: usage.cpu,
            io: usage.io,
            pids: usage.pids,
            net,
        })
    }
}
