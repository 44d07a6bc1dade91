//! One question and its answer.

use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_resolver::net::{DnsError, NetError};
use tracing::debug;

use super::super::filter::Names;
use super::super::gate::Gate;
use super::super::special::lies_in_special;
use super::{UDP_LEAST, UDP_MOST, Upstream};

/// Shortest and longest time for which an address is opened. The shortest leaves a program the time to connect.
const LIFETIME: (u32, u32) = (2, 86_400);
/// Most addresses that one answer opens.
const MAX_ADDRESSES: usize = 64;

/// What a guest wants to know.
#[derive(Debug)]
pub(super) struct Question {
    message: Message,
    /// Longest answer.
    room: usize,
}

impl Question {
    /// What came in a datagram; nothing where it is no question, so that nobody is answered who did not ask.
    pub(super) fn over_udp(bytes: &[u8]) -> Option<Self> {
        let mut question = Self::over_tcp(bytes)?;
        question.room = usize::from(question.message.max_payload()).clamp(UDP_LEAST, UDP_MOST);
        Some(question)
    }

    /// What came over a connection.
    pub(super) fn over_tcp(bytes: &[u8]) -> Option<Self> {
        let message = Message::from_vec(bytes).ok()?;
        let asks = message.metadata.message_type == MessageType::Query;
        asks.then_some(Self { message, room: usize::from(u16::MAX) })
    }

    fn reply(&self, code: ResponseCode) -> Message {
        let asked = &self.message.metadata;
        let mut reply = Message::error_msg(asked.id, asked.op_code, code);
        reply.metadata.recursion_desired = asked.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.add_queries(self.message.queries.iter().cloned());
        if self.message.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_MOST as u16);
            reply.set_edns(edns);
        }
        reply
    }
}

/// The answer, with its addresses open; nothing where it cannot even be written.
pub(super) async fn answer(question: Question, gate: &Gate, upstream: &Upstream) -> Option<Vec<u8>> {
    let reply = match question.message.queries.as_slice() {
        _ if question.message.metadata.op_code != OpCode::Query => question.reply(ResponseCode::NotImp),
        [query] if query.query_class() == DNSClass::IN => resolve(&question, query, gate, upstream).await,
        _ => question.reply(ResponseCode::FormErr),
    };
    let bytes = reply.to_vec().ok()?;
    if bytes.len() <= question.room { Some(bytes) } else { reply.truncate().to_vec().ok() }
}

async fn resolve(question: &Question, query: &Query, gate: &Gate, upstream: &Upstream) -> Message {
    let (names, turn) = gate.names();
    let Some(opens) = allowed(&names, query.name()) else { return question.reply(ResponseCode::Refused) };
    let kind = query.query_type();
    if matches!(kind, RecordType::ANY | RecordType::AXFR | RecordType::IXFR) {
        return question.reply(ResponseCode::NotImp);
    }
    // Their hints are addresses, too; whoever learns that there are none asks for these.
    if opens.is_some() && matches!(kind, RecordType::HTTPS | RecordType::SVCB) {
        return question.reply(ResponseCode::NoError);
    }
    let Some(resolver) = upstream.resolver() else { return question.reply(ResponseCode::ServFail) };
    let mut name = query.name().clone();
    name.set_fqdn(true);
    match resolver.lookup(name, kind).await {
        Ok(found) => {
            let mut records = found.answers().to_vec();
            if let Some(services) = opens
                && !open(&mut records, turn, &services, gate)
            {
                return question.reply(ResponseCode::ServFail);
            }
            let mut reply = question.reply(ResponseCode::NoError);
            reply.add_answers(records);
            reply
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => question.reply(none.response_code),
        Err(e) => {
            debug!(error = %e, "a name server of the host does not answer");
            question.reply(ResponseCode::ServFail)
        }
    }
}

/// Nothing where the name is not allowed; otherwise on which services its addresses have to be opened, if at all.
fn allowed(names: &Names, name: &Name) -> Option<Option<Vec<(u8, u16)>>> {
    let rules = match names {
        Names::None => return None,
        Names::All => return Some(None),
        Names::Only(rules) => rules,
    };
    let text = name.to_ascii();
    let mut services = Vec::new();
    let mut matching = rules.iter().filter(|rule| rule.pattern.matches(&text)).peekable();
    matching.peek()?;
    for rule in matching {
        if rule.services.is_empty() {
            return Some(Some(Vec::new()));
        }
        services.extend_from_slice(&rule.services);
    }
    services.sort_unstable();
    services.dedup();
    Some(Some(services))
}

/// Opens the addresses among the records, and takes out those that are not opened.
fn open(records: &mut Vec<Record>, turn: u64, services: &[(u8, u16)], gate: &Gate) -> bool {
    let mut addresses = Vec::new();
    records.retain_mut(|record| {
        let address: IpAddr = match &record.data {
            RData::A(a) => a.0.into(),
            RData::AAAA(aaaa) => aaaa.0.into(),
            _ => return true,
        };
        if lies_in_special(address.into()) || addresses.len() >= MAX_ADDRESSES {
            return false;
        }
        record.ttl = record.ttl.min(LIFETIME.1);
        addresses.push((address, Duration::from_secs(record.ttl.max(LIFETIME.0).into())));
        true
    });
    match gate.open_answers(turn, &addresses, services) {
        Ok(opened) => opened,
        Err(e) => {
            debug!(error = %e, "addresses of an answer could not be opened");
            false
        }
    }
}
