use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::packet::*;
use super::*;
use crate::testing::{Guest, conformance_suite, feed, hostile_ring, writable};
use crate::virtio::VirtioSlot;

const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;
const PORT: u32 = 52;
const PAGE: u32 = 4096;

/// A guest with the socket driver's behaviour: receive buffers, event buffers, and what it got.
struct Net {
    guest: Guest<Vsock>,
    folder: tempfile::TempDir,
    /// Receive buffers in the device's hands, by head.
    posted: Vec<(u16, u64, u32)>,
    /// Receive buffers the driver keeps back.
    spare: Vec<(u64, u32)>,
    /// Places for packets to send, each large enough for 64 KiB.
    free_tx: Vec<u64>,
    busy_tx: Vec<(u16, u64)>,
    events: Vec<(u16, u64)>,
    inbox: VecDeque<(Header, Vec<u8>)>,
}

fn listener(folder: &tempfile::TempDir, name: &str) -> UnixListener {
    UnixListener::bind(folder.path().join(name)).unwrap()
}

impl Net {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let resources = VsockResources { listener: listener(&folder, "sock") };
        let mut guest = Guest::booted(Vsock::new(DEFAULT_GUEST_CID, resources).unwrap());
        let free_tx = (0..4).map(|_| guest.alloc(70_000)).collect();
        let (posted, spare) = (Vec::new(), Vec::new());
        let mut net = Self {
            guest,
            folder,
            posted,
            spare,
            free_tx,
            busy_tx: Vec::new(),
            events: Vec::new(),
            inbox: VecDeque::new(),
        };
        for _ in 0..8 {
            let addr = net.guest.alloc(4);
            net.post_event(addr);
        }
        net
    }

    fn with_buffers(count: usize) -> Self {
        let mut net = Self::new();
        net.post(count);
        net
    }

    fn post(&mut self, count: usize) {
        for _ in 0..count {
            let addr = self.guest.alloc(PAGE as usize);
            self.spare.push((addr, PAGE));
        }
        self.repost();
    }

    fn repost(&mut self) {
        for (addr, len) in std::mem::take(&mut self.spare) {
            let head = self.guest.add(RX, &[writable(addr, len)]).unwrap();
            self.posted.push((head, addr, len));
        }
    }

    fn post_event(&mut self, addr: u64) {
        let head = self.guest.add(EVENT, &[writable(addr, 4)]).unwrap();
        self.events.push((head, addr));
    }

    /// Runs the device and collects what it sent; buffers go back only when `repost` is called.
    fn settle(&mut self) {
        self.guest.settle();
        while let Some((head, len)) = self.guest.take_used(RX) {
            let at = self.posted.iter().position(|(posted, ..)| *posted == head).unwrap();
            let (_, addr, room) = self.posted.swap_remove(at);
            assert!((44..=room).contains(&len));
            let bytes = self.guest.bytes(addr, len as usize);
            let header = Header::parse(bytes[..44].try_into().unwrap());
            assert_eq!(header.len, len - 44);
            assert_eq!((header.src_cid, header.dst_cid, header.kind), (2, 3, 1));
            self.inbox.push_back((header, bytes[44..].to_vec()));
            self.spare.push((addr, room));
        }
        while let Some((head, _)) = self.guest.take_used(TX) {
            let at = self.busy_tx.iter().position(|(busy, _)| *busy == head).unwrap();
            self.free_tx.push(self.busy_tx.swap_remove(at).1);
        }
    }

    fn next(&mut self) -> (Header, Vec<u8>) {
        self.try_next().expect("the device sent a packet")
    }

    fn try_next(&mut self) -> Option<(Header, Vec<u8>)> {
        if self.inbox.is_empty() {
            self.settle();
            self.repost();
            self.settle();
        }
        self.inbox.pop_front()
    }

    fn transmit(&mut self, header: Header, data: &[u8]) -> bool {
        let Some(addr) = self.free_tx.pop() else { return false };
        let header = Header { len: u32::try_from(data.len()).unwrap(), ..header };
        self.guest.ram.write_slice(&header.bytes(), GuestAddress(addr)).unwrap();
        self.guest.ram.write_slice(data, GuestAddress(addr + 44)).unwrap();
        // A header, and data in uneven fragments, as newer kernels send it.
        let mut chain = vec![crate::testing::readable(addr, 44)];
        let cut = header.len / 3;
        chain.push(crate::testing::readable(addr + 44, cut));
        chain.push(crate::testing::readable(addr + 44 + u64::from(cut), header.len - cut));
        let head = self.guest.add(TX, &chain).unwrap();
        self.busy_tx.push((head, addr));
        true
    }

    fn client(&mut self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("sock")).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    /// A connection that both sides agreed on.
    fn connect(&mut self, buf_alloc: u32) -> (UnixStream, Peer) {
        let mut client = self.client();
        client.write_all(b"CONNECT 52\n").unwrap();
        let (request, _) = self.next();
        assert_eq!((request.op, request.dst_port), (OP_REQUEST, PORT));
        let peer = Peer::accepting(&request, buf_alloc);
        assert!(self.transmit(peer.header(OP_RESPONSE), &[]));
        self.settle();
        assert_eq!(read_all(&mut client), format!("OK {}\n", request.src_port).as_bytes());
        (client, peer)
    }
}

/// The guest's end of a connection.
struct Peer {
    host_port: u32,
    guest_port: u32,
    buf_alloc: u32,
    received: u32,
    consumed: u32,
    sent: u32,
    host_alloc: u32,
    host_fwd: u32,
}

impl Peer {
    fn accepting(request: &Header, buf_alloc: u32) -> Self {
        Self {
            host_port: request.src_port,
            guest_port: request.dst_port,
            buf_alloc,
            received: 0,
            consumed: 0,
            sent: 0,
            host_alloc: request.buf_alloc,
            host_fwd: request.fwd_cnt,
        }
    }

    fn header(&self, op: u16) -> Header {
        Header {
            src_cid: 3,
            dst_cid: 2,
            src_port: self.guest_port,
            dst_port: self.host_port,
            len: 0,
            kind: TYPE_STREAM,
            op,
            flags: 0,
            buf_alloc: self.buf_alloc,
            fwd_cnt: self.consumed,
        }
    }

    fn note(&mut self, header: &Header) {
        (self.host_alloc, self.host_fwd) = (header.buf_alloc, header.fwd_cnt);
        if header.op == OP_RW {
            self.received = self.received.wrapping_add(header.len);
            let pending = self.received.wrapping_sub(self.consumed);
            assert!(pending <= self.buf_alloc, "the device overran the guest's buffer");
        }
    }

    fn credit(&self) -> u32 {
        self.host_alloc - self.sent.wrapping_sub(self.host_fwd)
    }
}

fn read_all(stream: &mut UnixStream) -> Vec<u8> {
    let (mut all, mut bytes) = (Vec::new(), [0; 65536]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return all,
            Ok(len) => all.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

fn at_end(stream: &mut UnixStream) -> bool {
    matches!(stream.read(&mut [0; 16]), Ok(0))
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut word = seed;
    let step = || {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        word.to_be_bytes()[0]
    };
    std::iter::repeat_with(step).take(len).collect()
}

fn boot() -> Guest<Vsock> {
    Net::with_buffers(16).guest
}

fn fresh() -> VsockResources {
    let folder = tempfile::tempdir().unwrap();
    VsockResources { listener: listener(&folder, "sock") }
}

conformance_suite!(
    Vsock,
    boot,
    |guest: &mut Guest<Vsock>| {
        // A guest that tries to connect: refused, but the rings move.
        let header = Header {
            src_cid: 3,
            dst_cid: 2,
            src_port: 9,
            dst_port: 8,
            len: 0,
            kind: TYPE_STREAM,
            op: OP_REQUEST,
            flags: 0,
            buf_alloc: 0,
            fwd_cnt: 0,
        };
        let packet = guest.buffer_of(&header.bytes());
        guest.request(TX, &[packet]);
    },
    fresh
);

#[test]
fn ten_mebibytes_go_both_ways_through_small_credit() {
    let mut net = Net::with_buffers(20);
    let (mut client, mut peer) = net.connect(10_000);
    const LEN: usize = 10 << 20;
    let (down, up) = (pattern(LEN, 1), pattern(LEN, 2));
    let (mut written, mut got_down, mut got_up) = (0, Vec::new(), Vec::new());
    let mut turn = 0usize;
    while got_down.len() < LEN || got_up.len() < LEN {
        turn += 1;
        assert!(turn < 200_000, "stalled: down {} up {}", got_down.len(), got_up.len());
        if let Ok(len) = client.write(&down[written..(written + 9_000).min(LEN)]) {
            written += len;
        }
        let sent = peer.sent as usize;
        let len = (peer.credit() as usize).min(60_000).min(LEN - sent).min(1 + turn * 7919 % 60_000);
        if len > 0 && net.transmit(peer.header(OP_RW), &up[sent..sent + len]) {
            peer.sent += u32::try_from(len).unwrap();
        }
        net.settle();
        while let Some((header, data)) = net.inbox.pop_front() {
            assert!(matches!(header.op, OP_RW | OP_CREDIT_UPDATE | OP_CREDIT_REQUEST), "{header:?}");
            peer.note(&header);
            got_down.extend_from_slice(&data);
        }
        // The guest reads now and then, the host in bursts, so that both directions stall.
        if turn.is_multiple_of(3) {
            peer.consumed = peer.received;
            net.transmit(peer.header(OP_CREDIT_UPDATE), &[]);
        }
        if turn.is_multiple_of(2) {
            net.repost();
        }
        if turn.is_multiple_of(11) {
            got_up.extend_from_slice(&read_all(&mut client));
        }
    }
    assert!(got_down == down);
    assert!(got_up == up);
    assert_eq!(net.guest.faults.count(), 0);
}

#[test]
fn what_follows_the_first_line_at_once_is_not_lost() {
    let mut net = Net::with_buffers(4);
    let mut client = net.client();
    client.write_all(b"CONNECT 52\nhello").unwrap();
    let (request, _) = net.next();
    client.write_all(b" world").unwrap();
    net.settle();
    assert!(net.inbox.is_empty(), "nothing before the guest accepted");
    let peer = Peer::accepting(&request, 65536);
    net.transmit(peer.header(OP_RESPONSE), &[]);
    let mut got = Vec::new();
    while let Some((header, data)) = net.try_next() {
        assert_eq!(header.op, OP_RW);
        got.extend(data);
    }
    assert_eq!(got, b"hello world");
}

#[test]
fn packets_wait_for_buffers_and_nothing_spins() {
    let mut net = Net::with_buffers(0);
    let mut client = net.client();
    client.write_all(b"CONNECT 52\n").unwrap();
    net.settle();
    assert!(!net.guest.turn(), "an idle loop although a packet waits");
    net.post(1);
    net.settle();
    let (request, _) = net.inbox.pop_front().unwrap();
    let peer = Peer::accepting(&request, 1 << 20);
    net.spare.clear();
    net.transmit(peer.header(OP_RESPONSE), &[]);
    client.write_all(&pattern(9000, 3)).unwrap();
    net.settle();
    let mut got = Vec::new();
    while got.len() < 9000 {
        net.post(1);
        net.settle();
        got.extend(net.inbox.pop_front().unwrap().1);
        assert!(net.inbox.is_empty());
        net.spare.clear();
    }
    assert!(got == pattern(9000, 3));
}

#[test]
fn half_closes_are_carried_both_ways() {
    let mut net = Net::with_buffers(8);
    let (mut client, mut peer) = net.connect(65536);
    client.write_all(b"question").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (header, data) = net.next();
    assert_eq!((header.op, &data[..]), (OP_RW, &b"question"[..]));
    peer.note(&header);
    let (header, _) = net.next();
    assert_eq!((header.op, header.flags), (OP_SHUTDOWN, SHUTDOWN_SEND));
    net.transmit(peer.header(OP_RW), b"answer");
    net.settle();
    assert_eq!(read_some(&mut client), b"answer");
    let mut end = peer.header(OP_SHUTDOWN);
    end.flags = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
    net.transmit(end, &[]);
    assert_eq!(net.next().0.op, OP_RST, "the guest's close is confirmed");
    assert!(at_end(&mut client));
    assert_eq!(net.guest.transport.device().connections(), 0);
    assert_eq!(net.guest.faults.count(), 0);
}

fn read_some(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let len = stream.read(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn a_client_that_leaves_is_reported_after_its_last_bytes() {
    let mut net = Net::with_buffers(8);
    let (mut client, _peer) = net.connect(65536);
    client.write_all(b"last words").unwrap();
    drop(client);
    assert_eq!(net.next().1, b"last words");
    let (header, _) = net.next();
    assert_eq!((header.op, header.flags), (OP_SHUTDOWN, SHUTDOWN_SEND | SHUTDOWN_RECEIVE));
    assert_eq!(net.guest.transport.device().connections(), 0);
}

#[test]
fn what_a_guest_sent_before_its_close_reaches_a_slow_client() {
    let mut net = Net::with_buffers(8);
    let (mut client, mut peer) = net.connect(65536);
    let data = pattern(256 * 1024, 5);
    let mut got = Vec::new();
    while (peer.sent as usize) < data.len() {
        let sent = peer.sent as usize;
        let len = (peer.credit() as usize).min(65536).min(data.len() - sent);
        assert!(len > 0);
        assert!(net.transmit(peer.header(OP_RW), &data[sent..sent + len]));
        peer.sent += u32::try_from(len).unwrap();
        net.settle();
    }
    let mut end = peer.header(OP_SHUTDOWN);
    end.flags = SHUTDOWN_SEND | SHUTDOWN_RECEIVE;
    net.transmit(end, &[]);
    loop {
        let (header, _) = net.next();
        if header.op == OP_RST {
            break;
        }
        assert_eq!(header.op, OP_CREDIT_UPDATE);
    }
    while got.len() < data.len() {
        got.extend(read_all(&mut client));
        net.settle();
    }
    assert!(got == data);
    assert!(at_end(&mut client));
    assert_eq!(net.guest.transport.device().connections(), 0);
}

#[test]
fn a_guest_that_sends_beyond_its_credit_is_reset() {
    let mut net = Net::with_buffers(8);
    let (_client, peer) = net.connect(65536);
    for _ in 0..20 {
        net.transmit(peer.header(OP_RW), &[0; 65536]);
        net.settle();
    }
    let last = std::iter::from_fn(|| net.try_next()).map(|(header, _)| header.op).collect::<Vec<_>>();
    assert!(last.contains(&OP_RST));
    assert!(net.guest.faults.count() > 0);
    assert_eq!(net.guest.transport.device().connections(), 0);
}

#[test]
fn a_refused_port_closes_the_client() {
    let mut net = Net::with_buffers(4);
    let mut client = net.client();
    client.write_all(b"CONNECT 52\n").unwrap();
    let (request, _) = net.next();
    net.transmit(Peer::accepting(&request, 0).header(OP_RST), &[]);
    net.settle();
    assert!(at_end(&mut client));
    assert_eq!(net.guest.faults.count(), 0);
}

#[test]
fn strangers_are_answered_with_a_reset_and_resets_are_not() {
    let mut net = Net::with_buffers(8);
    let request = Header {
        src_port: 1000,
        dst_port: 80,
        op: OP_REQUEST,
        src_cid: 3,
        dst_cid: 2,
        len: 0,
        kind: 1,
        flags: 0,
        buf_alloc: 9,
        fwd_cnt: 0,
    };
    net.transmit(request, &[]);
    let (reset, _) = net.next();
    assert_eq!((reset.op, reset.src_port, reset.dst_port), (OP_RST, 80, 1000));
    for op in [OP_RST, OP_CREDIT_UPDATE] {
        net.transmit(Header { op, ..request }, &[]);
        assert!(net.try_next().is_none());
    }
}

#[test]
fn clients_that_say_anything_else_are_dropped() {
    let mut net = Net::with_buffers(8);
    for line in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"CONNECT x\n", b"CONNECT 1234567890123456789012345", b"\n"]
    {
        let mut client = net.client();
        client.write_all(line).unwrap();
        net.settle();
        // What the device had not read makes this an error rather than an end.
        assert!(!matches!(client.read(&mut [0; 1]), Err(error) if error.kind() == ErrorKind::WouldBlock));
    }
    assert!(net.inbox.is_empty());
    assert_eq!(net.guest.transport.device().connections(), 0);
}

#[test]
fn silent_clients_make_room_for_others() {
    let mut net = Net::with_buffers(8);
    let mut silent: Vec<UnixStream> = Vec::new();
    for _ in 0..70 {
        silent.push(net.client());
        net.settle();
    }
    assert_eq!(net.guest.transport.device().connections(), 64);
    assert!(silent[..6].iter_mut().all(at_end));
    assert!(!at_end(&mut silent[6]));
    net.connect(1000);
}

#[test]
fn a_restored_guest_is_reset_before_it_gets_new_connections() {
    let mut net = Net::with_buffers(8);
    let (mut old, peer) = net.connect(65536);
    let saved = net.guest.transport.save();
    let child = net.guest.child(saved, VsockResources { listener: listener(&net.folder, "child") });
    let mut child = Net {
        guest: child,
        folder: tempfile::tempdir_in(net.folder.path()).unwrap(),
        posted: net.posted.clone(),
        spare: Vec::new(),
        free_tx: net.free_tx.clone(),
        busy_tx: net.busy_tx.clone(),
        events: net.events.clone(),
        inbox: VecDeque::new(),
    };
    let mut client = UnixStream::connect(net.folder.path().join("child")).unwrap();
    client.write_all(b"CONNECT 52\n").unwrap();
    child.settle();
    child.guest.transport.kick_all();
    child.settle();
    assert!(child.inbox.is_empty(), "held until the guest has reset its sockets");
    assert!(child.guest.transport.device().is_holding());
    let (head, len) = child.guest.take_used(EVENT).expect("the guest is told");
    let (expected, addr) = child.events[0];
    assert_eq!((head, len), (expected, 4));
    assert_eq!(child.guest.bytes(addr, 4), [0; 4]);
    assert!(child.guest.interrupt.read().is_ok());
    // A packet of the old connection is answered as one of no connection, still without opening new ones.
    child.transmit(peer.header(OP_RW), b"stale");
    let (reset, _) = child.next();
    assert_eq!((reset.op, reset.src_port), (OP_RST, peer.host_port));
    assert!(child.guest.transport.device().is_holding());
    child.post_event(addr);
    let (request, _) = child.next();
    assert_eq!(request.op, OP_REQUEST);
    assert_ne!(request.src_port, peer.host_port, "old port numbers are not used again");
    assert!(!child.guest.transport.device().is_holding());
    assert!(child.guest.take_used(EVENT).is_none(), "told once");
    // The source ran on: its connection lives and no event was sent.
    old.write_all(b"still here").unwrap();
    assert_eq!(net.next().1, b"still here");
    assert!(net.guest.take_used(EVENT).is_none());
}

#[test]
fn a_reset_that_finds_no_event_buffer_waits_for_one() {
    let mut net = Net::with_buffers(8);
    // Five generations deep, none of whose guests ran in between: one event, one buffer, each.
    let mut saved = net.guest.transport.save();
    for generation in 0..5 {
        let name = format!("child{generation}");
        let mut child = net.guest.child(saved, VsockResources { listener: listener(&net.folder, &name) });
        child.transport.kick_all();
        child.settle();
        assert!(child.take_used(EVENT).is_some());
        saved = child.transport.save();
        net.guest = child;
    }
    for _ in 5..8 {
        let name = format!("more{}", saved.queues[2].next_avail);
        let mut child = net.guest.child(saved, VsockResources { listener: listener(&net.folder, &name) });
        child.transport.kick_all();
        child.settle();
        assert!(child.take_used(EVENT).is_some());
        saved = child.transport.save();
        net.guest = child;
    }
    let mut last = net.guest.child(saved, VsockResources { listener: listener(&net.folder, "last") });
    last.transport.kick_all();
    last.settle();
    assert!(last.take_used(EVENT).is_none(), "no buffer left");
    let addr = last.alloc(4);
    last.add(EVENT, &[writable(addr, 4)]).unwrap();
    last.settle();
    assert!(last.take_used(EVENT).is_some());
    assert!(last.transport.device().is_holding());
    last.add(EVENT, &[writable(addr, 4)]).unwrap();
    last.settle();
    assert!(!last.transport.device().is_holding());
}

#[test]
fn a_driver_that_resets_the_device_ends_all_connections() {
    let mut net = Net::with_buffers(8);
    let (mut client, _) = net.connect(65536);
    net.guest.set(0x70, 0);
    assert!(at_end(&mut client));
    let mut later = net.client();
    later.write_all(b"CONNECT 52\n").unwrap();
    net.guest.settle();
    assert_eq!(net.guest.transport.device().connections(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_rings_are_survived(
        ring in hostile_ring(),
        queue in 0usize..3,
        op in 0u16..9,
        len in prop_oneof![Just(0u32), Just(20), Just(1 << 16), any::<u32>()],
        flags in 0u32..5,
        credit in any::<(u32, u32)>(),
        restored in any::<bool>(),
    ) {
        let mut net = Net::with_buffers(4);
        let (mut client, peer) = net.connect(credit.0);
        let header = Header { len, flags, fwd_cnt: credit.1, buf_alloc: credit.0, ..peer.header(op) };
        let mut guest = if restored {
            net.guest.child(net.guest.transport.save(), fresh())
        } else {
            net.guest
        };
        let _ = client.write(&[1; 5000]);
        feed(&mut guest, queue, &ring, &header.bytes());
        guest.transport.kick_all();
        guest.settle();
        drop(client);
        guest.settle();
    }
}
