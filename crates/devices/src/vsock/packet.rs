//! The packet header.
//!
//! Not `virtio_vsock::packet::VsockPacket`: it takes packets of at most two buffers, but guests from
//! Linux 6.17 on send large ones as a header and many fragments. The tests hold this codec against it.

/// Length of a header.
pub(super) const HEADER_LEN: usize = 44;

/// Stream sockets; the only type there is.
pub(super) const TYPE_STREAM: u16 = 1;

pub(super) const OP_REQUEST: u16 = 1;
pub(super) const OP_RESPONSE: u16 = 2;
pub(super) const OP_RST: u16 = 3;
pub(super) const OP_SHUTDOWN: u16 = 4;
pub(super) const OP_RW: u16 = 5;
pub(super) const OP_CREDIT_UPDATE: u16 = 6;
pub(super) const OP_CREDIT_REQUEST: u16 = 7;

/// In a SHUTDOWN: the sender will receive no more.
pub(super) const SHUTDOWN_RECEIVE: u32 = 1;
/// In a SHUTDOWN: the sender will send no more.
pub(super) const SHUTDOWN_SEND: u32 = 2;

/// `struct virtio_vsock_hdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) src_cid: u64,
    pub(super) dst_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    pub(super) len: u32,
    pub(super) kind: u16,
    pub(super) op: u16,
    pub(super) flags: u32,
    pub(super) buf_alloc: u32,
    pub(super) fwd_cnt: u32,
}

impl Header {
    pub(super) fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        Self {
            src_cid: u64::from_le_bytes(field(bytes, 0)),
            dst_cid: u64::from_le_bytes(field(bytes, 8)),
            src_port: u32::from_le_bytes(field(bytes, 16)),
            dst_port: u32::from_le_bytes(field(bytes, 20)),
            len: u32::from_le_bytes(field(bytes, 24)),
            kind: u16::from_le_bytes(field(bytes, 28)),
            op: u16::from_le_bytes(field(bytes, 30)),
            flags: u32::from_le_bytes(field(bytes, 32)),
            buf_alloc: u32::from_le_bytes(field(bytes, 36)),
            fwd_cnt: u32::from_le_bytes(field(bytes, 40)),
        }
    }

    pub(super) fn bytes(&self) -> [u8; HEADER_LEN] {
        let Self { src_cid, dst_cid, src_port, dst_port, len, kind, op, flags, buf_alloc, fwd_cnt } = self;
        let mut bytes = [0; HEADER_LEN];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            if let Some((head, tail)) = std::mem::take(&mut rest).split_at_mut_checked(field.len()) {
                head.copy_from_slice(field);
                rest = tail;
            }
        };
        put(&src_cid.to_le_bytes());
        put(&dst_cid.to_le_bytes());
        put(&src_port.to_le_bytes());
        put(&dst_port.to_le_bytes());
        put(&len.to_le_bytes());
        put(&kind.to_le_bytes());
        put(&op.to_le_bytes());
        put(&flags.to_le_bytes());
        put(&buf_alloc.to_le_bytes());
        put(&fwd_cnt.to_le_bytes());
        bytes
    }

    /// The reset that answers a packet of no connection.
    pub(super) fn reset_for(&self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            len: 0,
            kind: self.kind,
            op: OP_RST,
            flags: 0,
            buf_alloc: 0,
            fwd_cnt: 0,
        }
    }
}

fn field<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use virtio_vsock::packet::VsockPacket;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::testing::new_ram;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn the_codec_agrees_with_the_reference(bytes in any::<[u8; 32]>(), tail in any::<[u8; 12]>()) {
            let mut raw = [0; HEADER_LEN];
            raw[..32].copy_from_slice(&bytes);
            raw[32..].copy_from_slice(&tail);
            raw[24..28].fill(0); // no payload: the reference looks for one
            let ram = new_ram();
            ram.write_slice(&raw, GuestAddress(0x5_0000)).unwrap();
            let queue = MockSplitQueue::new(&ram, 16);
            let descriptor = RawDescriptor::from(Descriptor::new(0x5_0000, 44, 0, 0));
            let mut chain = queue.build_desc_chain(&[descriptor]).unwrap();
            let reference = VsockPacket::from_tx_virtq_chain(&ram, &mut chain, 0).unwrap();
            let ours = Header::parse(&raw);
            prop_assert_eq!(ours.bytes(), raw);
            prop_assert_eq!(ours.src_cid, reference.src_cid());
            prop_assert_eq!(ours.dst_cid, reference.dst_cid());
            prop_assert_eq!(ours.src_port, reference.src_port());
            prop_assert_eq!(ours.dst_port, reference.dst_port());
            prop_assert_eq!(ours.kind, reference.type_());
            prop_assert_eq!(ours.op, reference.op());
            prop_assert_eq!(ours.flags, reference.flags());
            prop_assert_eq!(ours.buf_alloc, reference.buf_alloc());
            prop_assert_eq!(ours.fwd_cnt, reference.fwd_cnt());
        }
    }
}
