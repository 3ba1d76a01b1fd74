//! What both ends set up before anything is measured: device, memory, queue pairs, and the exchange with the other
//! end.

use std::cell::Cell;

use driver_shim::oob::perftest::{Agreed, Exchange, Key};
use driver_shim::{
    AddressHandle, CompletionQueue, ConnectOptions, Device, MemoryRegion, PreparedQp, QueuePair,
};
use qp::{Access, AddressVector, QpType, RecvWr, SendWr};
use wire::{Gid, Mtu, QKey, Qpn, RKey, VirtAddr};

use super::args::{Args, AtomicType, Connection, Kind, Tool, Verb};
use crate::cmd::Failure;
use crate::cmd::interrupt::Interrupt;

/// The queue key of the stock tools' datagrams.
const QKEY: QKey = QKey::new(0x1111_1111);
/// Room for the network header of a datagram.
pub(super) const GRH: u32 = 40;
/// READs and atomics that a queue pair can have open, either way.
const MOST_OPEN: u8 = 128;
const PAGE: u32 = 4096;
const CACHE_LINE: u32 = 64;
/// Where the memory begins, as both ends name it: aligned to any page.
const BASE: u64 = 0x1_0000_0000;

/// Everything that a measurement needs.
pub(super) struct Session<'a> {
    pub(super) args: &'a Args,
    pub(super) tool: Tool,
    pub(super) device: Device,
    pub(super) cq: CompletionQueue,
    pub(super) mr: MemoryRegion,
    pub(super) pairs: Vec<Pair>,
    pub(super) exchange: Exchange,
    pub(super) agreed: Agreed,
    pub(super) interrupt: Interrupt,
    pub(super) gid_index: u8,
    pub(super) outstanding: u8,
    /// Bytes from one queue pair's memory to the next's.
    area: u32,
    /// Sizes to measure.
    pub(super) sizes: Vec<u32>,
}

/// One queue pair and its peer.
pub(super) struct Pair {
    pub(super) qp: QueuePair,
    pub(super) mine: Key,
    pub(super) theirs: Key,
    /// Where datagrams go.
    way: Option<AddressHandle>,
    /// Receives that are posted.
    receives: Cell<u64>,
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

impl<'a> Session<'a> {
    /// Sets all up and connects; returns when both ends are ready to begin.
    pub(super) fn open(
        args: &'a Args,
        tool: Tool,
        mut exchange: Exchange,
        device: Device,
    ) -> Result<Self, Failure> {
        let interrupt = Interrupt::watch()?;
        let mut waiting = || !interrupt.is_set();
        let mine =
            Agreed { cycle: PAGE, cache_line: CACHE_LINE, mtu: args.mtu.unwrap_or(device.active_mtu()) };
        let agreed = exchange.agree(&mine, &mut waiting)?;
        let sizes = sizes(args, tool, agreed.mtu)?;
        let largest = sizes.last().copied().unwrap_or(0);
        let area = largest.max(agreed.cycle).next_multiple_of(agreed.cycle);
        let gids: Vec<bool> = device.addresses().gids().iter().map(|gid| gid.is_v4()).collect();
        let gid_index = args.gid_index(&gids);
        let uses_reads = matches!(tool.verb, Verb::Read | Verb::Atomic);
        let outstanding = if uses_reads { args.outs.unwrap_or(MOST_OPEN) } else { 1 };

        let pd = device.alloc_pd();
        let header = if args.connection == Connection::Ud { GRH } else { 0 };
        let bytes = 2 * args.qp as usize * (area + header) as usize;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.register_at(memory(bytes)?, VirtAddr::new(BASE), access).map_err(failed)?;
        let (tx, rx) = (args.tx_depth(tool), if tool.verb == Verb::Send { args.rx_depth(tool) } else { 1 });
        let cq = device.create_cq(args.qp as usize * (tx + rx) as usize).map_err(failed)?;
        let mut prepared = Vec::new();
        for _ in 0..args.qp {
            let builder = pd.create_qp(args.connection.into(), &cq, &cq).max_send_wr(tx.max(args.post_list));
            let built = builder.max_recv_wr(rx).max_inline_data(args.inline_size).build().map_err(failed)?;
            prepared.push(built);
        }
        let rkey = if tool.verb == Verb::Send { RKey::new(0) } else { mr.rkey() };
        let key = |(index, qp): (u32, &PreparedQp)| {
            let end = qp.endpoint(gid_index.into());
            Key {
                outstanding: outstanding.into(),
                qpn: end.qpn,
                psn: end.psn,
                rkey,
                vaddr: VirtAddr::new(BASE + u64::from(args.qp + index) * u64::from(area)),
                gid: end.gid,
            }
        };
        let mine: Vec<Key> = (0..).zip(&prepared).map(key).collect();
        let mut theirs = Vec::new();
        for mine in &mine {
            theirs.push(exchange.swap_key(mine, &mut waiting)?);
        }
        if mine[0].gid.is_v4() != theirs[0].gid.is_v4() {
            return Err(Failure::Failed(
                "one end has a GID of IPv4 and the other one of IPv6: choose with -x or --ipv6 at both"
                    .into(),
            ));
        }
        let one_first = tool.kind == Kind::Latency && tool.verb != Verb::Send;
        if one_first {
            exchange.swap_key(&mine[0], &mut waiting)?;
        }
        let mut pairs = Vec::new();
        for ((prepared, mine), theirs) in prepared.into_iter().zip(mine).zip(theirs) {
            let (qp, way) = connect(args, agreed.mtu, gid_index, outstanding, prepared, &theirs)?;
            pairs.push(Pair { qp, mine, theirs, way, receives: Cell::new(0) });
        }
        Ok(Self {
            args,
            tool,
            device,
            cq,
            mr,
            pairs,
            exchange,
            agreed,
            interrupt,
            gid_index,
            outstanding,
            area,
            sizes,
        })
    }

    /// The swaps between connecting and the first message; `ready` posts what is to be there before.
    pub(super) fn begin(&mut self, ready: impl FnOnce(&Self) -> Result<(), Failure>) -> Result<(), Failure> {
        match (self.tool.verb, self.tool.kind) {
            (Verb::Send, _) => {
                self.barrier()?;
                self.swap_all()?;
                ready(self)?;
                self.barrier()
            }
            (_, Kind::Bandwidth) => {
                self.swap_all()?;
                self.barrier()
            }
            (_, Kind::Latency) => {
                self.barrier()?;
                self.barrier()
            }
        }
    }

    fn swap_all(&mut self) -> Result<(), Failure> {
        for pair in &mut self.pairs {
            let interrupt = &self.interrupt;
            pair.theirs = self.exchange.swap_key(&pair.mine, &mut || !interrupt.is_set())?;
        }
        Ok(())
    }

    /// Waits until the other end is here too.
    pub(super) fn barrier(&mut self) -> Result<(), Failure> {
        let interrupt = &self.interrupt;
        self.exchange.swap_key(&self.pairs[0].mine, &mut || !interrupt.is_set())?;
        Ok(())
    }

    pub(super) fn is_client(&self) -> bool {
        self.args.host.is_some()
    }

    /// Bytes from the place of one message to that of the next, and how many places there are.
    pub(super) fn places(&self, size: u32) -> (u32, u32) {
        let line = self.agreed.cache_line;
        if self.tool.kind == Kind::Latency || size > self.agreed.cycle / 2 {
            return (0, 1);
        }
        let step = size.next_multiple_of(line);
        // The other end may have named a line that is longer than the cycle.
        (step, (self.agreed.cycle / step).max(1))
    }

    /// Where in the memory the messages of queue pair `index` come from; READs and atomics bring theirs there.
    pub(super) fn source(&self, index: usize) -> usize {
        index * self.area as usize
    }

    /// Where in the memory the messages for queue pair `index` go.
    pub(super) fn target(&self, index: usize) -> usize {
        let receive = if self.args.connection == Connection::Ud {
            (self.area + GRH) as usize
        } else {
            self.area as usize
        };
        self.pairs.len() * self.area as usize + index * receive
    }

    /// The `number`th message of queue pair `index`.
    pub(super) fn message(
        &self,
        index: usize,
        number: u64,
        size: u32,
        wr_id: u64,
    ) -> Result<SendWr, Failure> {
        let pair = &self.pairs[index];
        let (step, places) = self.places(size);
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of places")]
        let offset = step * (number % u64::from(places)) as u32;
        let from = self.source(index) + offset as usize;
        let (va, rkey) = (pair.theirs.vaddr.wrapping_add(offset.into()), pair.theirs.rkey);
        let sge = self.mr.slice(from..from + size as usize).map_err(failed)?;
        let inline = size <= self.args.inline_size && matches!(self.tool.verb, Verb::Send | Verb::Write);
        let mut wr = match self.tool.verb {
            Verb::Send => SendWr::send(wr_id, &[sge]),
            Verb::Write => SendWr::write(wr_id, &[sge], va, rkey),
            Verb::Read => SendWr::read(wr_id, &[sge], va, rkey),
            Verb::Atomic => match self.args.atomic_type {
                AtomicType::FetchAndAdd => SendWr::fetch_add(wr_id, sge, va, rkey, 1),
                AtomicType::CmpAndSwap => SendWr::cmp_swap(wr_id, sge, va, rkey, 0, 0),
            },
        };
        if inline {
            wr = SendWr::inline(wr_id, wr.op, self.mr.to_vec(from..from + size as usize).map_err(failed)?);
        }
        Ok(match &pair.way {
            Some(way) => way.address(wr, pair.theirs.qpn, QKEY),
            None => wr,
        })
    }

    /// The longest message of all sizes.
    pub(super) fn longest(&self) -> u32 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// Fills the receive queues, for the first message to find them so. What an unreliable connection has lost has left
    /// some receives of the size before.
    pub(super) fn post_receives(&self) -> Result<(), Failure> {
        let depth = u64::from(self.args.rx_depth(self.tool));
        for index in 0..self.pairs.len() {
            let left = depth - self.pairs[index].receives.get().min(depth);
            (0..left).try_for_each(|number| self.post_recv(index, number, self.longest()))?;
        }
        Ok(())
    }

    /// A message has come for queue pair `index`.
    pub(super) fn on_receive(&self, index: usize) {
        let receives = &self.pairs[index].receives;
        receives.set(receives.get().saturating_sub(1));
    }

    /// Posts the `number`th receive of queue pair `index`.
    pub(super) fn post_recv(&self, index: usize, number: u64, size: u32) -> Result<(), Failure> {
        let (step, places) = self.places(size);
        let header = if self.args.connection == Connection::Ud { GRH } else { 0 };
        // A network header lies in front: then all have one place.
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of places")]
        let offset = if header > 0 { 0 } else { step * (number % u64::from(places)) as u32 };
        let at = self.target(index) + offset as usize;
        let sge = self.mr.slice(at..at + (size + header) as usize).map_err(failed)?;
        let pair = &self.pairs[index];
        pair.receives.set(pair.receives.get() + 1);
        pair.qp.post_recv(RecvWr::new(index as u64 | RECEIVE, &[sge])).map_err(failed)
    }
}

/// Marks the completions of receives.
pub(super) const RECEIVE: u64 = 1 << 63;

fn memory(bytes: usize) -> Result<Vec<u8>, Failure> {
    let failed =
        |_| Failure::Failed(format!("{bytes} bytes of memory cannot be had: choose a smaller -s or -q"));
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(failed)?;
    // Zeroed by the system, page by page as they are used.
    Ok(vec![0; bytes])
}

fn sizes(args: &Args, tool: Tool, mtu: Mtu) -> Result<Vec<u32>, Failure> {
    if let Some(size) = args.explicit_size().filter(|_| args.connection == Connection::Ud)
        && size > mtu.bytes()
    {
        return Err(Failure::Usage(format!(
            "{size} bytes do not fit a datagram: at most {mtu} between these ends (-s {mtu})"
        )));
    }
    Ok(args.sizes(tool, mtu))
}

fn connect(
    args: &Args,
    mtu: Mtu,
    gid_index: u8,
    outstanding: u8,
    prepared: PreparedQp,
    theirs: &Key,
) -> Result<(QueuePair, Option<AddressHandle>), Failure> {
    let peer = driver_shim::Endpoint { qpn: theirs.qpn, psn: theirs.psn, gid: theirs.gid };
    check_peer(theirs.gid, theirs.qpn)?;
    if args.connection == Connection::Ud {
        let qp = prepared.activate(QKEY)?;
        let way = AddressVector {
            dgid: peer.gid,
            sgid_index: gid_index,
            traffic_class: args.tclass,
            ..AddressVector::default()
        };
        let way = qp.pd().map(|pd| pd.create_ah(way)).transpose()?;
        return Ok((qp, way));
    }
    let options = ConnectOptions {
        gid_index,
        path_mtu: mtu,
        timeout: args.qp_timeout,
        retry_cnt: args.retry_count,
        // What the other end answers at a time bounds what is asked here.
        max_rd_atomic: u8::try_from(theirs.outstanding).unwrap_or(u8::MAX).clamp(1, MOST_OPEN),
        max_dest_rd_atomic: outstanding,
        traffic_class: args.tclass,
        ..ConnectOptions::default()
    };
    debug_assert_ne!(QpType::from(args.connection), QpType::Ud);
    Ok((prepared.connect(peer, &options)?, None))
}

fn check_peer(gid: Gid, qpn: Qpn) -> Result<(), Failure> {
    if gid == Gid::ZERO {
        return Err(Failure::Failed(format!(
            "the other end gave no GID for queue pair {}: choose one there with -x",
            qpn.value()
        )));
    }
    Ok(())
}
