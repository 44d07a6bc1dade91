//! Changing what the sets of a namespace hold, all at once, without a program.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use forkd_netlink::Netlink;
use netlink_packet_core::DefaultNla;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NetlinkMessage};
use netlink_packet_netfilter::conntrack::ConntrackMessage;
use netlink_packet_netfilter::nftables::{
    DataAttribute, ListAttribute, NfTablesMessage, SetElementAttribute, SetElementList, SetElementMessage,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::filter::{Filter, Opening, is_v4, key, octets};
use super::rules::{ANSWERED, ANSWERED_SERVICES, EXPLICIT, NAMED, TABLE};

/// `NFNL_SUBSYS_NFTABLES`, by which a batch says whom it is for.
const NFTABLES: u16 = 10;
/// Elements of one message, whose length has 16 bits.
const CHUNK: usize = 256;

type Message = NetlinkMessage<NetfilterMessage>;
type Element = Vec<SetElementAttribute>;

/// Speaks to the namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Netfilter {
    netlink: Netlink,
}

impl Netfilter {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { netlink: Netlink::open(NETLINK_NETFILTER)? })
    }

    /// From one instant to the next lets out what the filter says and nothing else, also of connections that are open.
    pub(super) fn enforce(&mut self, filter: &Filter) -> io::Result<()> {
        let mut batch = Vec::new();
        for family in [4, 6] {
            for (set, openings) in [(EXPLICIT, &filter.explicit), (NAMED, &filter.named)] {
                let own = openings.iter().filter(|opening| is_v4(&opening.net) == (family == 4));
                replace(&mut batch, &format!("{set}{family}"), own.map(interval).collect());
            }
            replace(&mut batch, &format!("{ANSWERED}{family}"), Vec::new());
            replace(&mut batch, &format!("{ANSWERED_SERVICES}{family}"), Vec::new());
        }
        self.transact(batch)?;
        self.forget_connections()
    }

    /// Opens an address for a while, everything of it or single services. What is open already stays so for as long.
    pub(super) fn open_answer(
        &mut self,
        address: IpAddr,
        services: &[(u8, u16)],
        lifetime: Duration,
    ) -> io::Result<()> {
        let (set, keys) = answer_keys(address, services);
        // Kernels before 6.12 do not prolong an element, so it is taken out and put in again.
        let renewed = vec![
            change(false, &set, elements(&keys, None)),
            change(true, &set, elements(&keys, Some(lifetime))),
        ];
        match self.transact(renewed) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            done => return done,
        }
        // Some were not there.
        for one in &keys {
            let one = std::slice::from_ref(one);
            match self.transact(vec![change(false, &set, elements(one, None))]) {
                Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e),
                _ => {}
            }
        }
        self.transact(vec![change(true, &set, elements(&keys, Some(lifetime)))])
    }

    /// All connections of the namespace are judged anew by their next packet.
    fn forget_connections(&mut self) -> io::Result<()> {
        let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0);
        let mut message = Message::from(NetfilterMessage::new(header, ConntrackMessage::Delete(Vec::new())));
        message.header.flags = NLM_F_ACK;
        self.netlink.send(vec![message])
    }

    fn transact(&mut self, changes: Vec<Message>) -> io::Result<()> {
        let control = |message: ControlMessage| {
            let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, NFTABLES);
            Message::from(NetfilterMessage::new(header, message))
        };
        let mut batch = vec![control(ControlMessage::BatchBegin)];
        batch.extend(changes);
        batch.push(control(ControlMessage::BatchEnd));
        self.netlink.send(batch)
    }
}

fn answer_keys(address: IpAddr, services: &[(u8, u16)]) -> (String, Vec<Vec<u8>>) {
    let family = if address.is_ipv4() { 4 } else { 6 };
    if services.is_empty() {
        return (format!("{ANSWERED}{family}"), vec![octets(address)]);
    }
    let keys = services.iter().map(|&(protocol, port)| key(octets(address), protocol, port)).collect();
    (format!("{ANSWERED_SERVICES}{family}"), keys)
}

/// Empties a set and fills it.
fn replace(batch: &mut Vec<Message>, set: &str, content: Vec<Element>) {
    batch.push(change(false, set, Vec::new()));
    batch.extend(content.chunks(CHUNK).map(|chunk| change(true, set, chunk.to_vec())));
}

/// Adds to a set, or takes out of it; taking out nothing in particular empties it.
fn change(add: bool, set: &str, content: Vec<Element>) -> Message {
    let mut attributes = vec![SetElementList::Table(TABLE.to_owned()), SetElementList::Set(set.to_owned())];
    if !content.is_empty() {
        attributes.push(SetElementList::Elements(content.into_iter().map(ListAttribute::Element).collect()));
    }
    let message = SetElementMessage { attributes };
    let message = if add {
        NfTablesMessage::NewSetElement(message)
    } else {
        NfTablesMessage::DeleteSetElement(message)
    };
    let header = NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0);
    let mut message = Message::from(NetfilterMessage::new(header, message));
    message.header.flags = NLM_F_ACK | if add { NLM_F_CREATE } else { 0 };
    message
}

fn interval(opening: &Opening) -> Element {
    let (first, last) = opening.keys();
    let last = DefaultNla::new(1, last);
    vec![SetElementAttribute::Key(DataAttribute::Value(first)), SetElementAttribute::KeyEnd(vec![last])]
}

fn elements(keys: &[Vec<u8>], lifetime: Option<Duration>) -> Vec<Element> {
    let millis = lifetime.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let timeout = millis.map(SetElementAttribute::Timeout);
    let element = |key: &Vec<u8>| {
        let key = SetElementAttribute::Key(DataAttribute::Value(key.clone()));
        [key].into_iter().chain(timeout.clone()).collect()
    };
    keys.iter().map(element).collect()
}
