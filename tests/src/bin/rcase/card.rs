//! The card under test as a side.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce::wire::{Gid, Mtu, Psn, QKey, Qpn, RKey, RnrTimer, VirtAddr};
use ferroce::{
    Access, AddressHandle, AddressVector, CompletionQueue, ConnectOptions, Device, MemoryRegion,
    MemoryWindow, MwRange, MwType, Placement, PreparedQp, ProtectionDomain, QpType, QueuePair, RecvWr,
    SendFlags, SendOp, SendWr, Sge,
};

use crate::side::{
    Completion, Difference, Endpoint, Failure, Flag, Kind, Link, Op, Outcome, Piece, QKEY, REGION, Recv,
    Right, Send, Side, Status, pattern,
};

/// Work requests that may wait.
const DEPTH: u32 = 256;
/// How long work on a key may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one wait for completions may take before the clock is read again.
const NAP: Duration = Duration::from_millis(100);

/// A soft NIC with its region.
pub(crate) struct Card {
    pd: ProtectionDomain,
    mr: MemoryRegion,
    gid_index: u8,
    access: Access,
    /// Its window, and the low byte of its key.
    window: (MemoryWindow, u8),
    queue: Queue,
}

/// Its queue pair.
enum Queue {
    None,
    Prepared(Kind, PreparedQp, CompletionQueue),
    /// With the way that datagrams take.
    Connected(QueuePair, CompletionQueue, Option<(AddressHandle, Qpn)>),
}

fn broken(what: impl ToString) -> Failure {
    Failure::Broken { side: "card", what: what.to_string() }
}

fn at(off: u64) -> Outcome<usize> {
    usize::try_from(off).map_err(broken)
}

impl Card {
    /// Takes the device; its queue pairs will use its first address of this IP version.
    pub(crate) fn new(device: &Device, ip: u8) -> Outcome<Self> {
        let wanted = |gid: &Gid| match gid.ip() {
            IpAddr::V4(_) => ip == 4,
            IpAddr::V6(v6) => ip == 6 && !v6.is_unicast_link_local(),
        };
        // Entry 0 is the link-local one, whatever it is made from.
        let found = device.addresses().gids().iter().skip(1).position(wanted);
        let index = found.ok_or_else(|| broken(format!("the device has no IPv{ip} address")))?;
        let gid_index = u8::try_from(index + 1).map_err(broken)?;
        let pd = device.alloc_pd();
        let rights = Access::all().difference(Access::ZERO_BASED);
        let window = (pd.alloc_mw(MwType::Type2).map_err(broken)?, 0);
        let mr = pd.register(vec![0; at(REGION)?], rights).map_err(broken)?;
        Ok(Self { pd, mr, gid_index, access: Access::empty(), window, queue: Queue::None })
    }

    fn slice(&self, (off, len): Piece) -> Outcome<Sge> {
        let start = at(off)?;
        self.mr.slice(start..start + at(len.into())?).map_err(broken)
    }

    fn slices(&self, pieces: &[Piece]) -> Outcome<Vec<Sge>> {
        pieces.iter().map(|&piece| self.slice(piece)).collect()
    }

    /// Posts work on a key and waits for it.
    fn does(&mut self, wr: SendWr) -> Outcome {
        let Queue::Connected(qp, ..) = &self.queue else { return Err(broken("not connected")) };
        qp.post_send(wr.signaled()).map_err(broken)?;
        match &self.poll(1, PATIENCE)?[..] {
            [wc] if wc.status == Status::SUCCESS => Ok(()),
            other => Err(broken(format!("work on a key: {other:?}"))),
        }
    }

    fn send_wr(&self, request: &Send) -> Outcome<SendWr> {
        let rkey = RKey::new(request.rkey.unwrap_or_default());
        let va = VirtAddr::new(request.addr);
        let imm = request.imm.map(u32::to_be_bytes);
        let op = match request.op {
            Op::Send | Op::SendWithImm => SendOp::Send { imm },
            Op::RdmaWrite | Op::RdmaWriteWithImm => SendOp::Write { va, rkey, imm },
            Op::RdmaRead => SendOp::Read { va, rkey },
            Op::CmpSwap => SendOp::CmpSwap { va, rkey, compare: request.compare_add, swap: request.swap },
            Op::FetchAdd => SendOp::FetchAdd { va, rkey, add: request.compare_add },
            Op::SendWithInv => SendOp::SendInv { rkey },
            Op::AtomicWrite => SendOp::AtomicWrite { va, rkey },
            Op::Flush => {
                let (length, placement) = (request.len, Placement::GLOBAL);
                SendOp::Flush { va, rkey, length, placement, whole: false }
            }
        };
        let mut wr = if request.flags.contains(&Flag::Inline) {
            let mut data = Vec::new();
            for &(off, len) in &request.sge {
                let start = at(off)?;
                data.extend(self.mr.to_vec(start..start + at(len.into())?).map_err(broken)?);
            }
            SendWr::inline(request.id, op, data)
        } else {
            SendWr::new(request.id, op, &self.slices(&request.sge)?)
        };
        for flag in &request.flags {
            wr.flags |= match flag {
                Flag::Signaled => SendFlags::SIGNALED,
                Flag::Solicited => SendFlags::SOLICITED,
                Flag::Fence => SendFlags::FENCE,
                Flag::Inline => SendFlags::empty(),
            };
        }
        Ok(wr)
    }
}

impl Side for Card {
    fn name(&self) -> &'static str {
        "card"
    }

    fn open(&mut self, kind: Kind, psn: u32, rights: &[Right]) -> Outcome<Endpoint> {
        self.queue = Queue::None;
        let always = Access::LOCAL_WRITE | Access::FLUSH_GLOBAL;
        self.access = rights.iter().fold(always, |all, right| {
            all | match right {
                Right::Write => Access::REMOTE_WRITE,
                Right::Read => Access::REMOTE_READ,
                Right::Atomic => Access::REMOTE_ATOMIC,
            }
        });
        let depth = usize::try_from(2 * DEPTH).map_err(broken)?;
        let cq = self.pd.device().create_cq(depth).map_err(broken)?;
        let qp_type = match kind {
            Kind::Rc => QpType::Rc,
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
        };
        let builder = self.pd.create_qp(qp_type, &cq, &cq).max_send_wr(DEPTH).max_recv_wr(DEPTH).max_sge(4);
        let qp = builder.build().map_err(broken)?.with_psn(Psn::new(psn));
        if kind != Kind::Ud {
            qp.init(self.access).map_err(broken)?;
        }
        let end = qp.endpoint(self.gid_index.into());
        self.queue = Queue::Prepared(kind, qp, cq);
        Ok(Endpoint {
            qpn: end.qpn.value(),
            psn: end.psn.value(),
            gid: end.gid.to_string(),
            rkey: self.mr.rkey().value(),
            addr: self.mr.addr().value(),
            size: REGION,
        })
    }

    fn connect(&mut self, remote: &Endpoint, link: &Link) -> Outcome {
        let Queue::Prepared(kind, qp, cq) = std::mem::replace(&mut self.queue, Queue::None) else {
            return Err(broken("connect without open"));
        };
        let options = ConnectOptions {
            gid_index: self.gid_index,
            path_mtu: Mtu::from_bytes(link.mtu).ok_or_else(|| broken(format!("MTU {}", link.mtu)))?,
            timeout: link.timeout,
            retry_cnt: link.retry_cnt,
            rnr_retry: link.rnr_retry,
            min_rnr_timer: RnrTimer::new(link.min_rnr_timer).unwrap_or_default(),
            max_rd_atomic: link.rd_atomic,
            max_dest_rd_atomic: link.rd_atomic,
            access: self.access,
            ..ConnectOptions::default()
        };
        let gid: std::net::Ipv6Addr = remote.gid.parse().map_err(broken)?;
        let peer = driver_shim::Endpoint {
            qpn: Qpn::new(remote.qpn),
            psn: Psn::new(remote.psn),
            gid: Gid::new(gid.octets()),
        };
        self.queue = if kind == Kind::Ud {
            let addr =
                AddressVector { dgid: peer.gid, sgid_index: self.gid_index, ..AddressVector::default() };
            let way = self.pd.create_ah(addr).map_err(broken)?;
            Queue::Connected(qp.activate(QKey::new(QKEY)).map_err(broken)?, cq, Some((way, peer.qpn)))
        } else {
            Queue::Connected(qp.connect(peer, &options).map_err(broken)?, cq, None)
        };
        Ok(())
    }

    fn fill(&mut self, off: u64, len: u64, seed: u8, skip: u64) -> Outcome {
        let data: Vec<u8> = (skip..skip + len).map(|i| pattern(seed, i)).collect();
        self.put(off, &data)
    }

    fn difference(&mut self, off: u64, len: u64, seed: u8, skip: u64) -> Outcome<Difference> {
        let got = self.get(off, len)?;
        Ok((0..).zip(&got).find(|&(i, &byte)| byte != pattern(seed, skip + i)).map(|(i, _)| i))
    }

    fn put(&mut self, off: u64, data: &[u8]) -> Outcome {
        self.mr.write_at(at(off)?, data).map_err(broken)
    }

    fn get(&mut self, off: u64, len: u64) -> Outcome<Vec<u8>> {
        self.mr.to_vec(at(off)?..at(off + len)?).map_err(broken)
    }

    fn post_send(&mut self, requests: &[Send]) -> Outcome {
        let Queue::Connected(qp, _, to) = &self.queue else { return Err(broken("not connected")) };
        for request in requests {
            let mut wr = self.send_wr(request)?;
            if let Some((way, qpn)) = to {
                wr = way.address(wr, *qpn, QKey::new(QKEY));
            }
            qp.post_send_later(wr).map_err(broken)?;
        }
        qp.device().drive();
        Ok(())
    }

    fn post_recv(&mut self, requests: &[Recv]) -> Outcome {
        for request in requests {
            let wr = RecvWr::new(request.id, &self.slices(&request.sge)?);
            match &self.queue {
                Queue::Prepared(_, qp, _) => qp.post_recv(wr),
                Queue::Connected(qp, ..) => qp.post_recv(wr),
                Queue::None => return Err(broken("not open")),
            }
            .map_err(broken)?;
        }
        Ok(())
    }

    fn bind(&mut self, off: u64, len: u64) -> Outcome<u32> {
        let (window, variant) = &mut self.window;
        *variant = variant.wrapping_add(1);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let range = MwRange { mr: self.mr.lkey(), va: self.mr.addr_at(at(off)?), length: len, access };
        let (wr, key) = (window.bind(0, *variant, &range), window.rkey(*variant));
        self.does(wr)?;
        Ok(key.value())
    }

    fn invalidate(&mut self, rkey: u32) -> Outcome {
        self.does(SendWr::local_inv(0, RKey::new(rkey)))
    }

    fn has(&mut self, _: Op) -> Outcome<bool> {
        Ok(true)
    }

    fn poll(&mut self, n: usize, limit: Duration) -> Outcome<Vec<Completion>> {
        let Queue::Connected(_, cq, _) = &self.queue else { return Err(broken("not connected")) };
        let start = Instant::now();
        let mut out = Vec::new();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            out.extend(cq.wait(n - out.len(), left.min(NAP)).iter().map(|wc| Completion {
                id: wc.wr_id.value(),
                status: Status(wc.status as u32),
                opcode: wc.opcode as u32,
                len: wc.byte_len,
                imm: wc.imm.map(u32::from_be_bytes),
                inv: wc.invalidated.map(RKey::value),
            }));
            if out.len() == n || left.is_zero() {
                return Ok(out);
            }
        }
    }
}
