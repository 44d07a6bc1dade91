//! One slot: a namespace with a tap, a way out, and rules.
//!
//! ```text
//!   guest ── tap0 ─┐ namespace          ┌── out ═══ fkd-N ── host ── the world
//!     192.0.0.2    └ rules, resolver ───┘ 198.18.x.y         masquerades
//! ```
//!
//! All of it hangs on the name of the namespace: whoever finds that finds the rest, and what has no name is gone with
//! the thread that made it.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forkd_protocol::guest::network::{GATEWAY4, GATEWAY6, GUEST4, GUEST6, PREFIX4, PREFIX6};
use forkd_protocol::rest::{NetStats, NetworkPolicy};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use forkd_netlink::{Links, Veth};

use super::addresses::{GATEWAY_MAC, GUEST_MAC, OUT, Outer, TAP, veth};
use super::dns::{self, Sockets, Upstream};
use super::filter::Filter;
use super::gate::Gate;
use super::namespace::{number, own_namespace, sysctl};
use super::netfilter::Netfilter;
use super::{NetError, namespace, rate, rules, tap, traffic};

/// What slots of one controller have in common.
#[derive(Debug)]
pub(super) struct Common {
    /// How the names of its namespaces begin; the number follows.
    pub(super) prefix: String,
    pub(super) upstream: Arc<Upstream>,
    /// Where resolvers run.
    pub(super) runtime: Handle,
}

/// A slot. Dropping it ends its resolver and leaves everything else as it is.
#[derive(Debug)]
pub(super) struct Slot {
    index: u32,
    enforcer: Arc<Enforcer>,
    resolver: AbortHandle,
    /// Nothing where a monitor has it.
    tap: Option<File>,
    /// What went through it for others than the one who is to have it.
    before: NetStats,
}

/// What of a slot a policy decides about.
#[derive(Debug)]
pub(super) struct Enforcer {
    name: String,
    gate: Arc<Gate>,
    /// Its bandwidth may be limited.
    is_limited: AtomicBool,
}

/// What is opened in the namespace.
struct Opened {
    netfilter: Netfilter,
    sockets: Sockets,
}

impl Slot {
    /// Makes slot number `index`, closed. Where that fails nothing is left; blocks.
    pub(super) fn prepare(common: &Common, index: u32) -> Result<Self, NetError> {
        let name = format!("{}{index}", common.prefix);
        let mut host = Links::open().map_err(NetError::kernel("speaking rtnetlink"))?;
        let made = namespace::create(&name, || furnish(&mut host, index));
        match made {
            Ok((opened, tap)) => {
                Ok(Self::assemble(common, (name, index), opened, Some(tap), Filter::default()))
            }
            Err(e) => {
                if !e.is_taken() {
                    // Removed with its other end, but not at once.
                    let _ = host.remove(&veth(index));
                }
                Err(e)
            }
        }
    }

    /// Finds the slot of a sandbox that runs, whose policy this is. Nothing of it is changed; blocks.
    pub(super) fn find(common: &Common, name: &str, policy: &NetworkPolicy) -> Result<Self, NetError> {
        let index = index_of(common, name).ok_or_else(|| NetError::Gone(name.to_owned()))?;
        let opened = namespace::within(name, open)?;
        Ok(Self::assemble(common, (name.to_owned(), index), opened, None, Filter::of(policy)?))
    }

    fn assemble(
        common: &Common,
        (name, index): (String, u32),
        opened: Opened,
        tap: Option<File>,
        filter: Filter,
    ) -> Self {
        let gate = Arc::new(Gate::new(opened.netfilter, filter.names));
        let serving = dns::serve(opened.sockets, Arc::clone(&gate), Arc::clone(&common.upstream));
        let resolver = common.runtime.spawn(serving).abort_handle();
        // One that is found may have been limited by another controller.
        let enforcer = Arc::new(Enforcer { name, gate, is_limited: AtomicBool::new(tap.is_none()) });
        Self { index, enforcer, resolver, tap, before: NetStats::default() }
    }

    pub(super) fn name(&self) -> &str {
        &self.enforcer.name
    }

    pub(super) fn before(&self) -> NetStats {
        self.before
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn enforcer(&self) -> Arc<Enforcer> {
        Arc::clone(&self.enforcer)
    }

    pub(super) fn take_tap(&mut self) -> Option<File> {
        self.tap.take()
    }

    /// Makes it as it was when it was prepared, for another guest: nothing of the one before passes any more; blocks.
    pub(super) fn renew(&mut self) -> Result<(), NetError> {
        self.enforcer.enforce(&NetworkPolicy::from(forkd_protocol::rest::Egress::Deny))?;
        self.before = traffic::of_slot(self.index).unwrap_or_default();
        // Only one can have it, so this fails as long as the monitor before is there.
        self.tap = Some(namespace::within(self.name(), || {
            tap::open(TAP).map_err(NetError::kernel(format!("opening the tap of {}", self.name())))
        })?);
        Ok(())
    }

    /// Nothing of it is left; blocks.
    pub(super) fn remove(self) -> Result<(), NetError> {
        self.resolver.abort();
        remove(self.name(), self.index)
    }
}

impl Enforcer {
    /// From one instant to the next lets out what the policy says. Where that fails what held before holds still, but
    /// for the bandwidth; blocks.
    pub(super) fn enforce(&self, policy: &NetworkPolicy) -> Result<(), NetError> {
        let filter = Filter::of(policy)?;
        let limits = policy.upload_kbit.is_some() || policy.download_kbit.is_some();
        // Entering a namespace takes a thread of its own, so it is not done for nothing.
        if self.is_limited.fetch_or(limits, Ordering::Relaxed) || limits {
            self.limit(policy)?;
        }
        self.gate.enforce(filter).map_err(NetError::kernel(format!("filling the sets of {}", self.name)))
    }

    fn limit(&self, policy: &NetworkPolicy) -> Result<(), NetError> {
        namespace::within(&self.name, || {
            let mut links = Links::open().map_err(NetError::kernel("speaking rtnetlink"))?;
            let ends = [(OUT, policy.upload_kbit), (TAP, policy.download_kbit)];
            ends.into_iter()
                .try_for_each(|(end, kbit)| {
                    let interface = links.index(end)?;
                    rate::limit(&mut links, interface, kbit)
                })
                .map_err(NetError::kernel(format!("limiting the bandwidth of {}", self.name)))
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.resolver.abort();
    }
}

/// The number of a slot of this controller.
pub(super) fn index_of(common: &Common, name: &str) -> Option<u32> {
    name.strip_prefix(&common.prefix)?.parse().ok()
}

/// Removes a slot by its name, whatever of it is there.
pub(super) fn remove(name: &str, index: u32) -> Result<(), NetError> {
    let removed = Links::open().and_then(|mut host| host.remove(&veth(index)));
    // The name last: by it a slot that is half removed is found again.
    removed.map_err(NetError::kernel(format!("removing {}", veth(index))))?;
    namespace::remove(name)
}

fn open() -> Result<Opened, NetError> {
    let netfilter = Netfilter::open().map_err(NetError::kernel("speaking to netfilter"))?;
    let sockets = Sockets::bind().map_err(NetError::kernel("listening for names"))?;
    Ok(Opened { netfilter, sockets })
}

/// Everything of a new namespace, from inside.
fn furnish(host: &mut Links, index: u32) -> Result<(Opened, File), NetError> {
    let kernel = |what: &str| NetError::kernel(format!("{what} of slot {index}"));
    tune().map_err(kernel("setting the knobs"))?;
    let mut own = Links::open().map_err(NetError::kernel("speaking rtnetlink"))?;
    // First what is refused where another controller has this number.
    connect(host, &mut own, index).map_err(kernel("making the veth"))?;
    let tap = tap::open(TAP).map_err(kernel("making the tap"))?;
    connect_guest(&mut own).map_err(kernel("setting up the tap"))?;
    rules::load(&rules::of_namespace())?;
    Ok((open()?, tap))
}

/// It forwards, and believes nobody about routes.
fn tune() -> io::Result<()> {
    sysctl("ipv4/ip_forward", "1")?;
    sysctl("ipv4/conf/all/accept_redirects", "0")?;
    sysctl("ipv4/conf/default/accept_redirects", "0")?;
    sysctl("ipv4/conf/all/send_redirects", "0")?;
    if has_ipv6() {
        sysctl("ipv6/conf/all/disable_ipv6", "0")?;
        sysctl("ipv6/conf/default/disable_ipv6", "0")?;
        sysctl("ipv6/conf/all/forwarding", "1")?;
        for knob in ["accept_ra", "accept_redirects", "accept_dad"] {
            sysctl(&format!("ipv6/conf/all/{knob}"), "0")?;
            sysctl(&format!("ipv6/conf/default/{knob}"), "0")?;
        }
    }
    Ok(())
}

pub(super) fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6/conf").exists()
}

fn with_v6<T>(v4: T, v6: T) -> impl Iterator<Item = T> {
    [v4].into_iter().chain(has_ipv6().then_some(v6))
}

/// The veth, with both of its ends.
fn connect(host: &mut Links, own: &mut Links, index: u32) -> io::Result<()> {
    let outer = Outer::of(index);
    let (name, namespace) = (veth(index), own_namespace()?);
    host.add_veth(&Veth {
        name: &name,
        mac: outer.host_mac,
        peer: OUT,
        peer_mac: outer.inner_mac,
        peer_namespace: number(namespace.as_fd()),
    })?;
    let pairs = |v4, v6| with_v6((IpAddr::V4(v4), 31), (IpAddr::V6(v6), 127));
    let (hosts, inners) = (|| pairs(outer.host4, outer.host6), || pairs(outer.inner4, outer.inner6));
    let ends = [(host, name.as_str(), false), (own, OUT, true)];
    for (links, name, is_inner) in ends {
        let index = links.index(name)?;
        links.up(index, None)?;
        let (own, other, mac) = if is_inner {
            (inners().collect::<Vec<_>>(), hosts().collect::<Vec<_>>(), outer.host_mac)
        } else {
            (hosts().collect(), inners().collect(), outer.inner_mac)
        };
        for (address, prefix) in own {
            links.add_address(index, address, prefix)?;
        }
        for (address, _) in other {
            links.add_neighbour(index, address, mac)?;
            if is_inner {
                links.add_default_route(index, address)?;
            }
        }
    }
    Ok(())
}

/// The tap's side: the gateway, and who the guest is.
fn connect_guest(own: &mut Links) -> io::Result<()> {
    let tap = own.index(TAP)?;
    own.up(tap, Some(GATEWAY_MAC))?;
    for (address, prefix) in with_v6((IpAddr::V4(GATEWAY4), PREFIX4), (IpAddr::V6(GATEWAY6), PREFIX6)) {
        own.add_address(tap, address, prefix)?;
    }
    for guest in with_v6(IpAddr::V4(GUEST4), IpAddr::V6(GUEST6)) {
        own.add_neighbour(tap, guest, GUEST_MAC)?;
    }
    Ok(())
}
