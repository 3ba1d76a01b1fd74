//! Field cases F21 to F33: what a program sees of its queues, work requests and attributes. Two NICs on a simulated
//! network, a hand-made peer where the packets themselves are the case, and the handles where threads are.

mod attributes;
mod completions;
mod notices;
mod posting;

use qp::{CqId, QpInit, QpState, QpType, RecvWr, SendWr, Sge};
use transport::{Access, Completion, WcOpcode, WcStatus};
use wire::Qpn;

use crate::harness::world::Endpoint;
use crate::harness::{Conn, World, WorldConfig, seed};

/// Both ends of a connection, with a region each.
struct Ends {
    world: World,
    a: Endpoint,
    b: Endpoint,
    mrs: [qp::MrInfo; 2],
    conn: Conn,
}

/// Bytes of each region: those of the first are all 1, those of the second all 2.
const ROOM: usize = 64 << 10;

fn ends(name: &'static str, conn: Conn) -> Ends {
    let (mut world, [a, b]) = World::pair(WorldConfig::new(name, seed(21)), conn);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mrs = [(a, 1), (b, 2)].map(|(end, byte)| world.register(end.host, vec![byte; ROOM], all));
    Ends { world, a, b, mrs, conn }
}

impl Ends {
    /// A piece of the first end's region.
    fn near(&self, offset: u64, length: u32) -> Sge {
        piece(&self.mrs[0], offset, length)
    }

    /// A piece of the second end's region.
    fn far(&self, offset: u64, length: u32) -> Sge {
        piece(&self.mrs[1], offset, length)
    }

    fn post(&mut self, wr: SendWr) {
        let (now, end) = (self.world.now, self.a);
        self.world.nic(end).post_send(now, end.qpn, wr).unwrap();
    }

    /// Posts a receive at the second end.
    fn post_recv(&mut self, wr: RecvWr) {
        let (now, end) = (self.world.now, self.b);
        self.world.nic(end).post_recv(now, end.qpn, wr).unwrap();
    }

    /// To a state that takes no attributes.
    fn go(&mut self, end: Endpoint, state: QpState) {
        let now = self.world.now;
        let attr = qp::QpAttr { state, ..qp::QpAttr::default() };
        self.world.nic(end).modify_qp(now, end.qpn, &attr, qp::AttrMask::STATE).unwrap();
    }

    fn state(&mut self, end: Endpoint) -> QpState {
        self.world.nic(end).query_qp(end.qpn).unwrap().0.state
    }

    /// Takes both ends through RESET to a connection anew.
    fn reconnect(&mut self) {
        for (end, peer) in [(self.a, self.b), (self.b, self.a)] {
            self.go(end, QpState::Reset);
            let (conn, now, gid) = (self.conn, self.world.now, self.world.hosts[peer.host].gid);
            let [mine, theirs] = conn.psns;
            let psns = if end.host == self.a.host { [mine, theirs] } else { [theirs, mine] };
            conn.establish(self.world.nic(end), now, end.qpn, (gid, peer.qpn), psns).unwrap();
        }
    }

    /// Lets everything happen; the send completions of the first end.
    fn drive(&mut self) -> Vec<Completion> {
        self.world.drive();
        self.world.send_completions(self.a)
    }

    fn bytes_at_far(&mut self, offset: usize, len: usize) -> Vec<u8> {
        let (end, lkey) = (self.b, self.mrs[1].lkey);
        self.world.nic(end).mr_bytes(lkey, offset, len).unwrap().to_vec()
    }

    /// What another queue pair of the first host would be made of.
    fn init(&self) -> QpInit {
        let (pd, cq): (_, CqId) = (self.world.hosts[self.a.host].pd, self.a.send_cq);
        QpInit { pd, send_cq: cq, recv_cq: cq, ..QpInit::new(QpType::Rc, pd, cq, cq) }
    }
}

fn piece(mr: &qp::MrInfo, offset: u64, length: u32) -> Sge {
    Sge { addr: mr.addr.wrapping_add(offset), length, lkey: mr.lkey }
}

fn statuses(done: &[Completion]) -> Vec<(u64, WcStatus)> {
    done.iter().map(|wc| (wc.wr_id.value(), wc.status)).collect()
}

fn opcodes(done: &[Completion]) -> Vec<WcOpcode> {
    done.iter().map(|wc| wc.opcode).collect()
}

fn all_flushed(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::WrFlushErr)).collect()
}

/// A number that is no queue pair's.
const NOBODY: Qpn = Qpn::new(5);
