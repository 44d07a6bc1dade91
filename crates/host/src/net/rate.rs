//! How fast a sandbox sends and is sent: a token bucket at either end of its namespace (`tc-tbf`).

use std::io;

use forkd_netlink::Links;
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

/// linux/pkt_sched.h.
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;
/// What may pass at once: 20 ms worth, and a few frames as large as taps make them.
const BURST_PER_SECOND: u64 = 50;
const LEAST_BURST: u64 = 256 << 10;
/// What waits: 100 ms worth, and some frames.
const WAITING_PER_SECOND: u64 = 10;

/// What leaves `interface` is no faster than that; as fast as it likes where nothing is said.
pub(super) fn limit(links: &mut Links, interface: u32, kbit: Option<u64>) -> io::Result<()> {
    let mut message = TcMessage::default();
    message.header.index = i32::try_from(interface).map_err(io::Error::other)?;
    message.header.parent = TcHandle::ROOT;
    let Some(kbit) = kbit else {
        return match links.ask(RouteNetlinkMessage::DelQueueDiscipline(message), 0) {
            // It has none.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(()),
            done => done,
        };
    };
    let bytes_per_second = kbit.saturating_mul(125);
    message.header.handle = TcHandle { major: 1, minor: 0 };
    message.attributes =
        vec![TcAttribute::Kind("tbf".to_owned()), TcAttribute::Options(options(bytes_per_second))];
    links.ask(RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE)
}

fn options(bytes_per_second: u64) -> Vec<TcOption> {
    let burst = narrow((bytes_per_second / BURST_PER_SECOND).max(LEAST_BURST));
    let limit = narrow((bytes_per_second / WAITING_PER_SECOND).max(LEAST_BURST * 2));
    let mut parameters = rate(narrow(bytes_per_second)).to_vec();
    parameters.extend([0; 12]); // No peak rate.
    parameters.extend(limit.to_ne_bytes());
    parameters.extend([0; 8]); // The burst is told in bytes, below.
    let option = |kind, value| TcOption::Other(DefaultNla::new(kind, value));
    vec![
        option(TCA_TBF_PARMS, parameters),
        option(TCA_TBF_RATE64, bytes_per_second.to_ne_bytes().to_vec()),
        option(TCA_TBF_BURST, burst.to_ne_bytes().to_vec()),
    ]
}

/// `struct tc_ratespec`.
fn rate(bytes_per_second: u32) -> [u8; 12] {
    let mut spec = [0; 12];
    spec[1] = TC_LINKLAYER_ETHERNET;
    spec[8..].copy_from_slice(&bytes_per_second.to_ne_bytes());
    spec
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
