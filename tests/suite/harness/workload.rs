//! Runs random plans on both ends of a connection at once and holds every byte, value and completion against the
//! model.

use std::collections::VecDeque;

use qp::{MrInfo, Placement, QpCap, RecvWr, SendFlags, SendOp, SendWr, Sge};
use rand_pcg::Pcg64;
use transport::{Access, Completion, WcOpcode, WcStatus};
use wire::{Duration, Instant};

use super::plan::{self, Expected, MAX_LEN, Mix, Model, Planned, PlannedOp, SOURCE_LEN};
use super::world::{Endpoint, Flow, World};

/// How much work is under way at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depths {
    /// Sends posted and not known to be complete.
    pub(crate) sends: usize,
    /// Receives posted.
    pub(crate) receives: usize,
    /// How long a used receive takes to be posted again.
    pub(crate) repost_delay: Duration,
}

/// Room of one READ or receive: its pieces do not lie where their order says.
const SLOT: u32 = 2 * MAX_LEN;
const INLINE: u32 = 200;

/// Sizes of a queue pair that can carry a workload.
pub(crate) fn cap(depths: Depths) -> QpCap {
    let count = |n: usize| u32::try_from(n).expect("a small depth");
    QpCap {
        max_send_wr: count(depths.sends),
        max_recv_wr: count(depths.receives),
        max_inline_data: INLINE,
        ..QpCap::default()
    }
}

/// One end at work.
struct Side {
    end: Endpoint,
    depths: Depths,
    plan: Vec<Planned>,
    /// What the plan's messages find and leave at the peer.
    model: Model,
    found: Vec<Option<u64>>,
    posted: usize,
    completed: usize,
    /// What the peer's plan makes arrive here.
    expected: Vec<Expected>,
    received: usize,
    /// Receive slots to be posted, each from a time on.
    reposts: VecDeque<(Instant, usize)>,
    source: Vec<u8>,
    mrs: Regions,
}

struct Regions {
    source: MrInfo,
    sink: MrInfo,
    words: MrInfo,
    landing: MrInfo,
    receive: MrInfo,
}

impl Regions {
    fn register(world: &mut World, host: usize, source: &[u8], depths: Depths) -> Self {
        let local = Access::LOCAL_WRITE;
        let slots = |n: usize| vec![0; n * SLOT as usize];
        Self {
            source: world.register(host, source.to_vec(), Access::REMOTE_READ),
            sink: world.register(
                host,
                Model::new().sink,
                local | Access::REMOTE_WRITE | Access::FLUSH_GLOBAL,
            ),
            words: world.register(host, vec![0; plan::WORDS as usize * 8], local | Access::REMOTE_ATOMIC),
            landing: world.register(host, slots(depths.sends), local),
            receive: world.register(host, slots(depths.receives), local),
        }
    }
}

fn sge(mr: &MrInfo, offset: u32, length: u32) -> Sge {
    Sge { addr: mr.addr.wrapping_add(offset.into()), length, lkey: mr.lkey }
}

/// Where the bytes of slot `n` are, in their order: the first third of them lies in the upper half.
fn slot_pieces(n: usize, len: u32) -> [(u32, u32); 2] {
    let start = u32::try_from(n).expect("a small depth") * SLOT;
    let first = len / 3;
    [(start + MAX_LEN, first), (start, len - first)]
}

/// Runs `mix` in both directions between `ends` and checks everything.
pub(crate) fn run(world: &mut World, ends: [Endpoint; 2], mix: Mix, depths: Depths, rng: &mut Pcg64) {
    let mix = Mix { max_inline: INLINE, ..mix };
    let plans = [(); 2].map(|()| plan::plan(mix, rng));
    let sources = [(); 2].map(|()| plan::source(rng));
    let expected = [1, 0].map(|peer| plan::receives(&plans[peer], &sources[peer]));
    let mut sides: Vec<_> = ends
        .into_iter()
        .zip(plans)
        .zip(sources.iter().cloned().zip(expected))
        .map(|((end, plan), (source, expected))| Side {
            mrs: Regions::register(world, end.host, &source, depths),
            reposts: (0..depths.receives).map(|slot| (world.now, slot)).collect(),
            end,
            depths,
            plan,
            model: Model::new(),
            found: Vec::new(),
            posted: 0,
            completed: 0,
            expected,
            received: 0,
            source,
        })
        .collect();
    let deadline = world.now + Duration::from_secs(600);
    let done = world.run(deadline, |world| {
        let [a, b] = &mut sides[..] else { unreachable!("two ends") };
        a.work(world, b);
        b.work(world, a);
        if a.is_done() && b.is_done() {
            return Flow::Done;
        }
        Flow::Wait([a, b].iter().filter_map(|side| side.reposts.front().map(|(at, _)| *at)).min())
    });
    let progress = |side: &Side| (side.completed, side.posted, side.received, side.expected.len());
    assert!(done, "stopped short at {:?}: {:?}", world.now, sides.iter().map(progress).collect::<Vec<_>>());
    sides[0].check_peer(world, &sides[1]);
    sides[1].check_peer(world, &sides[0]);
}

impl Side {
    fn is_done(&self) -> bool {
        self.completed == self.plan.len() && self.received == self.expected.len()
    }

    fn work(&mut self, world: &mut World, peer: &Self) {
        // Where a connection breaks, the sends say why.
        for wc in world.send_completions(self.end) {
            self.on_send(world, &wc, &peer.source);
        }
        for wc in world.recv_completions(self.end) {
            self.on_receive(world, &wc);
        }
        while let Some(&(_, slot)) = self.reposts.front().filter(|(at, _)| *at <= world.now) {
            self.reposts.pop_front();
            let sges = slot_pieces(slot, MAX_LEN).map(|(at, len)| sge(&self.mrs.receive, at, len));
            world.post_recv(self.end, RecvWr::new(slot as u64, &sges));
        }
        while self.posted < self.plan.len() && self.posted - self.completed < self.depths.sends {
            let wr = self.next_send(peer);
            let now = world.now;
            world.nic(self.end).post_send(now, self.end.qpn, wr).expect("the post");
        }
    }

    fn next_send(&mut self, peer: &Self) -> SendWr {
        let message = &self.plan[self.posted];
        self.found.push(self.model.execute(message, &self.source));
        let at = |mr: &MrInfo, offset: u32| mr.addr.wrapping_add(offset.into());
        let (source, sink, words) = (&peer.mrs.source, &peer.mrs.sink, &peer.mrs.words);
        let word_at = |word: u32| (at(words, word * 8), words.rkey);
        let op = match message.op {
            PlannedOp::Send { imm } => SendOp::Send { imm },
            PlannedOp::Write { at: offset, imm } => {
                SendOp::Write { va: at(sink, offset), rkey: sink.rkey, imm }
            }
            PlannedOp::Read { at: offset } => SendOp::Read { va: at(source, offset), rkey: source.rkey },
            PlannedOp::CmpSwap { word, compare, swap } => {
                let (va, rkey) = word_at(word);
                SendOp::CmpSwap { va, rkey, compare, swap }
            }
            PlannedOp::FetchAdd { word, add } => {
                let (va, rkey) = word_at(word);
                SendOp::FetchAdd { va, rkey, add }
            }
            PlannedOp::AtomicWrite { at: offset } => {
                SendOp::AtomicWrite { va: at(sink, offset), rkey: sink.rkey }
            }
            PlannedOp::Flush => SendWr::flush_region(0, sink.rkey, Placement::GLOBAL).op,
        };
        let wr_id = self.posted as u64;
        let mut wr = if message.inline {
            SendWr::inline(wr_id, op, plan::gathered(message, &self.source))
        } else if op.has_response_data() {
            let pieces = slot_pieces(self.posted % self.depths.sends, message.len);
            SendWr::new(wr_id, op, &pieces.map(|(at, len)| sge(&self.mrs.landing, at, len)))
        } else {
            let pieces: Vec<_> =
                message.pieces.iter().map(|&(at, len)| sge(&self.mrs.source, at, len)).collect();
            SendWr::new(wr_id, op, &pieces)
        };
        wr.flags.set(SendFlags::SIGNALED, message.signaled);
        wr.flags.set(SendFlags::FENCE, message.fence);
        wr.flags.set(SendFlags::SOLICITED, message.solicited);
        self.posted += 1;
        // Means nothing but to XRC.
        wr.remote_srqn = peer.end.srqn;
        wr
    }

    /// A send completion also completes the unsignalled ones before it.
    fn on_send(&mut self, world: &mut World, wc: &Completion, peer_source: &[u8]) {
        let id = usize::try_from(wc.wr_id.value()).expect("our own mark");
        assert_eq!((wc.status, wc.qp_num), (WcStatus::Success, self.end.qpn), "{wc:?}");
        assert!((self.completed..self.posted).contains(&id), "completed twice or never posted: {wc:?}");
        for n in self.completed..=id {
            let message = &self.plan[n];
            assert!(n == id || !message.signaled, "{n} has no completion, but {id} has");
            let landed = || {
                let bytes = |(at, len): (u32, u32)| {
                    let nic = &world.hosts[self.end.host].nic;
                    nic.mr_bytes(self.mrs.landing.lkey, at as usize, len as usize).expect("a slot").to_vec()
                };
                slot_pieces(n % self.depths.sends, message.len).map(bytes).concat()
            };
            let opcode = match message.op {
                PlannedOp::Send { .. } => WcOpcode::Send,
                PlannedOp::Write { .. } => WcOpcode::RdmaWrite,
                PlannedOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
                PlannedOp::Flush => WcOpcode::Flush,
                PlannedOp::Read { at } => {
                    let right = &peer_source[at as usize..(at + message.len) as usize];
                    assert!(landed() == right, "wrong bytes from READ {n}");
                    WcOpcode::RdmaRead
                }
                PlannedOp::CmpSwap { .. } | PlannedOp::FetchAdd { .. } => {
                    let found = u64::from_ne_bytes(landed().try_into().expect("eight bytes"));
                    assert_eq!(Some(found), self.found[n], "atomic {n} found another value");
                    let swap = matches!(message.op, PlannedOp::CmpSwap { .. });
                    if swap { WcOpcode::CompSwap } else { WcOpcode::FetchAdd }
                }
            };
            if n == id {
                assert_eq!((wc.opcode, wc.byte_len), (opcode, message.len), "{wc:?}");
            }
        }
        self.completed = id + 1;
    }

    fn on_receive(&mut self, world: &mut World, wc: &Completion) {
        let n = self.received;
        let right = self.expected.get(n).unwrap_or_else(|| panic!("a receive too many: {wc:?}"));
        assert_eq!((wc.status, wc.qp_num), (WcStatus::Success, self.end.receiver), "{wc:?}");
        assert_eq!(
            (wc.byte_len, wc.imm, wc.solicited),
            (right.byte_len, right.imm, right.solicited),
            "{n}: {wc:?}"
        );
        let opcode = if right.data.is_some() { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        assert_eq!(wc.opcode, opcode, "{n}: {wc:?}");
        let slot = usize::try_from(wc.wr_id.value()).expect("our own mark");
        assert_eq!(slot, n % self.depths.receives, "receives complete in the order of posting");
        if let Some(data) = &right.data {
            let mut offset = 0;
            for (at, capacity) in slot_pieces(slot, MAX_LEN) {
                let part = &data[offset..data.len().min(offset + capacity as usize)];
                offset += part.len();
                let nic = &world.hosts[self.end.host].nic;
                let got = nic.mr_bytes(self.mrs.receive.lkey, at as usize, part.len()).expect("a slot");
                assert!(got == part, "wrong bytes in receive {n}");
            }
        }
        self.received += 1;
        self.reposts.push_back((world.now + self.depths.repost_delay, slot));
    }

    /// What this side's WRITEs and atomics have left at `peer`, and that nothing else has changed there.
    fn check_peer(&self, world: &mut World, peer: &Self) {
        let nic = world.nic(peer.end);
        let sink = nic.mr_bytes(peer.mrs.sink.lkey, 0, self.model.sink.len()).expect("the sink");
        assert!(sink == self.model.sink, "wrong bytes from WRITEs");
        let words = nic.mr_bytes(peer.mrs.words.lkey, 0, self.model.words.len() * 8).expect("the words");
        let right: Vec<_> = self.model.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(words, right, "wrong values from atomics");
        let source = nic.mr_bytes(peer.mrs.source.lkey, 0, SOURCE_LEN as usize).expect("the source");
        assert!(source == peer.source, "something wrote to the source");
    }
}
