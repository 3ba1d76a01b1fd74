//! The connection beside the ones under attack: it moves data and checks them, whenever it is asked to.

use qp::{Access, CqId, MrInfo, Nic, QpInit, QpType, RecvWr, SendWr, Sge};
use transport::WcStatus;
use wire::batch::{HeaderKnowledge, RxBurst, TxBatch};
use wire::{Gid, Instant, Qpn};

use crate::harness::Conn;

/// One end.
pub(super) struct End {
    pub(super) qpn: Qpn,
    cq: CqId,
    mr: MrInfo,
}

/// Bytes that each message moves.
const LEN: usize = 5000;

impl End {
    /// A queue pair in RESET with a domain, a completion queue and memory of its own.
    pub(super) fn new(nic: &mut Nic) -> Self {
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(64).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = nic.reg_mr(pd, vec![0; 4 * LEN], access).unwrap();
        let init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::Rc, pd, cq, cq) };
        Self { qpn: nic.create_qp(init).unwrap(), cq, mr }
    }

    pub(super) fn connect(&self, nic: &mut Nic, peer: (Gid, Qpn)) {
        let psns = [0x00FF_FFF0, 0x00FF_FFF0];
        Conn::default().establish(nic, Instant::ZERO, self.qpn, peer, psns).unwrap();
    }

    fn slot(&self, n: usize) -> Sge {
        let len = u32::try_from(LEN).unwrap();
        Sge { addr: self.mr.addr.wrapping_add((n * LEN) as u64), length: len, lkey: self.mr.lkey }
    }

    fn fill(&self, nic: &mut Nic, n: usize, byte: u8) {
        nic.mr_bytes_mut(self.mr.lkey, n * LEN, LEN).unwrap().fill(byte);
    }

    fn holds(&self, nic: &Nic, n: usize, byte: u8) {
        let bytes = nic.mr_bytes(self.mr.lkey, n * LEN, LEN).unwrap();
        assert!(bytes.iter().all(|b| *b == byte), "the connection beside has wrong data in slot {n}");
    }
}

/// A SEND, a WRITE and a READ from `near` to `far` and back, with contents that `round` decides.
pub(super) fn exchange(now: Instant, near: (&mut Nic, &End), far: (&mut Nic, &End), round: u8) {
    let (near_nic, near) = near;
    let (far_nic, far) = far;
    for (n, byte) in [(0, round), (1, round ^ 0x55)] {
        near.fill(near_nic, n, byte);
    }
    far.fill(far_nic, 3, round ^ 0xAA);
    far_nic.post_recv(now, far.qpn, RecvWr::new(9, &[far.slot(0)])).unwrap();
    let (to, from) = (far.slot(1).addr, far.slot(3).addr);
    for wr in [
        SendWr::send(1, &[near.slot(0)]),
        SendWr::write(2, &[near.slot(1)], to, far.mr.rkey),
        SendWr::read(3, &[near.slot(2)], from, far.mr.rkey),
    ] {
        near_nic.post_send(now, near.qpn, wr).unwrap();
    }
    while pass(now, near_nic, far_nic, far.qpn) | pass(now, far_nic, near_nic, near.qpn) {}
    for (nic, cq, ids) in [(&mut *near_nic, near.cq, &[1, 2, 3][..]), (&mut *far_nic, far.cq, &[9][..])] {
        let mut done = Vec::new();
        nic.poll_cq(cq, usize::MAX, &mut done);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
        assert_eq!(done.iter().map(|wc| wc.wr_id.value()).collect::<Vec<_>>(), ids);
    }
    far.holds(far_nic, 0, round);
    far.holds(far_nic, 1, round ^ 0x55);
    near.holds(near_nic, 2, round ^ 0xAA);
}

/// Carries what `from` sends to the queue pair `qpn` of `to`; what it sends to others is lost.
fn pass(now: Instant, from: &mut Nic, to: &mut Nic, qpn: Qpn) -> bool {
    let mut burst = RxBurst::new();
    let mut batch = TxBatch::new();
    while from.poll_transmit(now, &mut batch) {
        for (net, body) in batch.iter() {
            let packet = wire::Packet::parse_body(net, body).unwrap();
            if packet.bth().dest_qp() == qpn && to.config().gids.contains(&net.dst_gid()) {
                burst.push(net, HeaderKnowledge::Seen, body);
            }
        }
    }
    to.handle_burst(now, &burst);
    !burst.is_empty()
}
