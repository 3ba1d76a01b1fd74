//! Messages through a network that loses and repeats packets: each arrives whole, or not at all.

use proptest::prelude::*;
use wire::{LKey, Packet, PacketRepr, Psn, VirtAddr, WrId};

use super::*;
use crate::kit::{ALL, BASE, KEY, PD, Ram, Receives, other_end, params, pattern, reparse};
use crate::ports::Effects;
use crate::wqe::{SendOp, Sge, SgeList};
use wire::Instant;

/// Key of the region that receives go to, and room of each.
const INBOX: u32 = 0x300;
const ROOM: u32 = 1024;

/// What a network does to a packet.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    Doubled,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![6 => Just(Fate::Arrives), 1 => Just(Fate::Lost), 1 => Just(Fate::Doubled)]
}

/// Packets of SENDs of these lengths, each from its own place in the region.
fn packets(lengths: &[u32], sq_psn: Psn) -> (Vec<PacketRepr>, Effects) {
    let mut params = params();
    params.sq_psn = sq_psn;
    let (mut ram, mut out) = (Ram::default(), Effects::default());
    ram.add(KEY, BASE, ALL, pattern(1 << 16, 1));
    let mut ctx = Ctx { now: Instant::ZERO, params: &params, memory: &mut ram, out: &mut out };
    let mut sender = Sender::new(Transport::Uc, &params);
    for (id, length) in lengths.iter().enumerate() {
        let addr = VirtAddr::new(BASE + id as u64 * u64::from(ROOM));
        sender.post(SendWqe {
            wr_id: WrId::new(id as u64),
            op: SendOp::Send { imm: Some([u8::try_from(id).unwrap(); 4]) },
            sges: SgeList::from_slice(&[Sge { addr, length: *length, lkey: LKey::new(KEY) }]),
            inline: None,
            flags: SendFlags::SIGNALED,
            length: *length,
            datagram: None,
            remote_srqn: None,
            psns: None,
        });
    }
    let mut sent = Vec::new();
    while let Some(len) = sender.prepare(&mut ctx) {
        let mut body = vec![0; len];
        assert!(sender.write(&mut ctx, &mut body));
        sent.push(reparse(&body));
    }
    (sent, out)
}

proptest! {
    #[test]
    fn what_arrives_is_whole_and_in_order(
        lengths in prop::collection::vec(0..=ROOM, 1..20),
        fates in prop::collection::vec(fate(), 100),
        sq_psn in prop_oneof![Just(0xFF_FFFD_u32), 0..1_u32 << 24],
    ) {
        let (sent, out) = packets(&lengths, Psn::new(sq_psn));
        prop_assert_eq!(out.completions.len(), lengths.len());
        let mut params = other_end(&params());
        params.rq_psn = Psn::new(sq_psn);
        let (mut ram, mut out) = (Ram::default(), Effects::default());
        ram.add(INBOX, BASE, ALL, vec![0; (ROOM * 24) as usize]);
        let mut receives = Receives::default();
        for id in 0..20_u32 {
            let addr = VirtAddr::new(BASE + u64::from(id * ROOM));
            let sges = SgeList::from_slice(&[Sge { addr, length: ROOM, lkey: LKey::new(INBOX) }]);
            receives.0.push_back(RecvWqe { wr_id: WrId::new(u64::from(id)), sges, pd: PD, side: Side::Recv });
        }
        let mut receiver = Receiver::new(&params);
        let mut lost_nothing = true;
        for (packet, fate) in sent.iter().zip(fates.iter().cycle()) {
            let times = match fate {
                Fate::Arrives => 1,
                Fate::Lost => 0,
                Fate::Doubled => 2,
            };
            lost_nothing &= times == 1;
            for _ in 0..times {
                let mut body = Vec::new();
                packet.emit_body(&mut body);
                let packet = Packet::parse_body(packet.net, &body).unwrap();
                let mut ctx = Ctx { now: Instant::ZERO, params: &params, memory: &mut ram, out: &mut out };
                let _ = receiver.on_packet(&mut ctx, &mut receives, &packet);
            }
        }
        let source = pattern(1 << 16, 1);
        let mut last = None;
        for (n, (side, wc)) in out.completions.iter().enumerate() {
            prop_assert_eq!((*side, wc.status), (Side::Recv, WcStatus::Success));
            // Receives are used in order, and the immediate says which message it was.
            prop_assert_eq!(wc.wr_id, WrId::new(n as u64));
            let id = usize::from(wc.imm.unwrap()[0]);
            // A whole message that is one packet may come twice; none comes late.
            prop_assert!(last.is_none_or(|last| last <= id));
            last = Some(id);
            prop_assert_eq!(wc.byte_len, lengths[id]);
            let (from, to, len) = (id * ROOM as usize, n * ROOM as usize, lengths[id] as usize);
            prop_assert_eq!(&ram.bytes(INBOX)[to..to + len], &source[from..from + len]);
        }
        if lost_nothing {
            prop_assert_eq!(out.completions.len(), lengths.len());
        }
        prop_assert!(!out.fatal && PD == params.pd);
    }
}
