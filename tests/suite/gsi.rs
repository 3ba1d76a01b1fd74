//! The general services queue pair: datagrams of 256 bytes to queue pair 1, as the kernel's connection management
//! sends them, and as we do.

use std::time::Duration;

use driver_shim::backend::{Backend, Local, Loopback, Udp, UdpConfig};
use driver_shim::{CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair};
use qp::{
    Access, AddressVector, AttrMask, CqId, Nic, NicConfig, QpAttr, QpInit, QpState, QpType, RecvWr, SendWr,
    Sge,
};
use transport::DropReason;
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Bth, Frame, Gid, Instant, Mtu, NetHeader, PKey, Packet, PacketRepr, QKey, Qpn};

use crate::captures;

/// The queue key that all know.
const GSI_QKEY: QKey = QKey::new(0x8001_0000);
/// Bytes of a management datagram.
const MAD: usize = 256;
/// The attribute of a request for a connection.
const CM_REQ: [u8; 2] = [0x00, 0x10];

/// All datagrams to queue pair 1 in the captures of the kernel's connection management.
fn mads() -> Vec<PacketRepr> {
    let mut found = Vec::new();
    for file in captures::vectors("rxe_cm").into_iter().chain(captures::vectors("rxe")) {
        captures::each_frame(&file, |captured| {
            let Ok(frame) = Frame::parse(captured.data) else { return };
            let Ok(packet) = PacketRepr::parse_body(frame.net, frame.body) else { return };
            if packet.bth.dest_qp() == Qpn::GSI {
                found.push(packet);
            }
        });
    }
    found
}

/// A NIC at `gid` with a queue pair 1 in RTS, and a region of its own.
struct Host {
    nic: Nic,
    cq: CqId,
    mr: qp::MrInfo,
    init: QpInit,
}

impl Host {
    fn new(gid: Gid) -> Self {
        let caps = Caps {
            max_segments: 16,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: 64,
            credit: u32::MAX,
            src_port: None,
        };
        let mut nic = Nic::new(NicConfig::new(vec![gid], Mtu::B1024, caps, 1, transport::Profile::Strict));
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(64).unwrap();
        let mr = nic.reg_mr(pd, vec![0; 4096], Access::LOCAL_WRITE).unwrap();
        let init = QpInit::new(QpType::Gsi, pd, cq, cq);
        assert_eq!(nic.create_qp(init).unwrap(), Qpn::GSI);
        let mut host = Self { nic, cq, mr, init };
        host.bring_up(Qpn::GSI, QpType::Gsi, GSI_QKEY);
        host
    }

    fn bring_up(&mut self, qpn: Qpn, qp_type: QpType, qkey: QKey) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state, qkey, ..QpAttr::default() };
            self.nic.modify_qp(Instant::ZERO, qpn, &attr, AttrMask::to_enter(qp_type, state)).unwrap();
        }
    }

    fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr.wrapping_add(at), length, lkey: self.mr.lkey }
    }

    /// Offers a packet; what of it a receive holds, network header and all.
    fn take(&mut self, packet: &PacketRepr) -> Option<Vec<u8>> {
        let wr = RecvWr::new(0, &[self.sge(0, 40 + 256)]);
        self.nic.post_recv(Instant::ZERO, Qpn::GSI, wr).unwrap();
        let (mut burst, mut body) = (RxBurst::new(), Vec::new());
        packet.emit_body(&mut body);
        burst.push(packet.net, HeaderKnowledge::Seen, &body);
        self.nic.handle_burst(Instant::ZERO, &burst);
        let mut done = Vec::new();
        self.nic.poll_cq(self.cq, 8, &mut done);
        let length = done.first()?.byte_len as usize;
        assert!(done[0].grh && done.len() == 1);
        Some(self.nic.mr_bytes(self.mr.lkey, 0, length).unwrap().to_vec())
    }

    /// Sends from `qpn`; the packet.
    fn send(&mut self, qpn: Qpn, to: Gid, data: &[u8]) -> PacketRepr {
        self.nic.mr_bytes_mut(self.mr.lkey, 1024, data.len()).unwrap().copy_from_slice(data);
        let addr = AddressVector { dgid: to, ..AddressVector::default() };
        let ah = self.nic.create_ah(self.init.pd, addr).unwrap();
        let sge = self.sge(1024, u32::try_from(data.len()).unwrap());
        let wr = SendWr::send(7, &[sge]).to(ah, Qpn::GSI, GSI_QKEY);
        self.nic.post_send(Instant::ZERO, qpn, wr).unwrap();
        let mut batch = TxBatch::new();
        assert!(self.nic.poll_transmit(Instant::ZERO, &mut batch));
        let (net, body) = batch.iter().next().unwrap();
        assert!(Packet::parse_body(net, body).unwrap().icrc_ok());
        PacketRepr::parse_body(net, body).unwrap()
    }
}

/// `packet` as it would be with these changes, its ICRC right.
fn changed(packet: &PacketRepr, change: impl FnOnce(&mut PacketRepr)) -> PacketRepr {
    let mut packet = packet.clone();
    change(&mut packet);
    packet.refill_icrc();
    packet
}

/// Rule R-ADR-21: every datagram of the kernel is taken as it is, whatever port it comes from.
#[test]
fn the_kernels_management_datagrams_are_taken() {
    let all = mads();
    let requests = all.iter().filter(|mad| mad.payload.get(16..18) == Some(&CM_REQ[..]));
    assert!(requests.count() >= 10, "real requests for connections");
    for mad in &all {
        let mut host = Host::new(mad.net.dst_gid());
        let taken = host.take(mad).unwrap_or_else(|| panic!("dropped: {:?}", host.nic.drops()));
        assert_eq!(taken[40..], mad.payload, "{mad:?}");
    }
    let req = &all[0];
    for port in [0, 69, 4791, 0xFFFF] {
        let from_port = changed(req, |packet| {
            let (src, dst) = (packet.net.src(), packet.net.dst());
            packet.net = NetHeader::v2(src, dst, port, 0, 64)
                .unwrap()
                .with_transport_len(packet.net.udp().map_or(0, |udp| usize::from(udp.len) - 8));
        });
        let mut host = Host::new(req.net.dst_gid());
        assert!(host.take(&from_port).is_some(), "port {port}: {:?}", host.nic.drops());
    }
}

/// What the kernel drops in silence, we drop: a partition that does not match, another queue key, a spoilt ICRC. Half
/// of a partition key is enough.
#[test]
fn what_is_not_for_the_general_services_is_dropped() {
    let all = mads();
    let mad = &all[0];
    type Change = fn(&mut PacketRepr);
    let cases: [(Change, Option<DropReason>); 5] = [
        (|p| p.bth = p.bth.with_pkey(PKey::new(0x8001)), Some(DropReason::PKeyMismatch)),
        (|p| p.bth = p.bth.with_pkey(PKey::new(0x7FFF)), None),
        (|p| p.ext[0] = wire::ext::Deth::new(QKey::new(1), Qpn::GSI).into(), Some(DropReason::QKeyMismatch)),
        (|p| p.bth = p.bth.with_tver(1), Some(DropReason::BadVersion)),
        (|p| p.net = p.net.with_traffic_class(0x6A), None),
    ];
    for (change, reason) in cases {
        let mut host = Host::new(mad.net.dst_gid());
        let packet = changed(mad, change);
        assert_eq!(host.take(&packet).is_none(), reason.is_some(), "{packet:?}");
        let dropped: Vec<_> = host.nic.drops().iter().filter(|(_, n)| *n > 0).map(|(why, _)| why).collect();
        assert_eq!(dropped, reason.into_iter().collect::<Vec<_>>());
    }
    let mut host = Host::new(mad.net.dst_gid());
    let mut spoilt = mad.clone();
    spoilt.icrc ^= 1;
    assert_eq!((host.take(&spoilt), host.nic.drops().get(DropReason::BadIcrc)), (None, 1));
}

/// What we send has the same header as what the kernel does.
#[test]
fn our_management_datagrams_look_like_the_kernels() {
    let all = mads();
    let theirs = all.iter().find(|mad| mad.payload.len() == MAD).unwrap();
    let mut host = Host::new(theirs.net.src_gid());
    let ours = host.send(Qpn::GSI, theirs.net.dst_gid(), &theirs.payload);
    let header = |bth: Bth| (bth.opcode(), bth.dest_qp(), bth.pkey(), bth.pad_count(), bth.solicited());
    assert_eq!(header(ours.bth), header(theirs.bth));
    assert_eq!((&ours.ext, &ours.payload), (&theirs.ext, &theirs.payload));
    assert_eq!(ours.net.dst(), theirs.net.dst());
}

/// Rules R-REQ-35, R-ADR-21: only queue pair 1 itself speaks with the queue key of bit 31.
#[test]
fn an_ordinary_queue_pair_does_not_reach_the_general_services() {
    let gids = [1, 2].map(|last| Gid::from(std::net::Ipv4Addr::new(10, 0, 0, last)));
    let (mut a, mut b) = (Host::new(gids[0]), Host::new(gids[1]));
    let ud = QpInit { qp_type: QpType::Ud, ..a.init };
    let ud = a.nic.create_qp(ud).unwrap();
    a.bring_up(ud, QpType::Ud, QKey::new(0x11));
    let packet = a.send(ud, gids[1], &[0; MAD]);
    assert_eq!((b.take(&packet), b.nic.drops().get(DropReason::QKeyMismatch)), (None, 1));
    let packet = a.send(Qpn::GSI, gids[1], &[9; MAD]);
    let taken = b.take(&packet);
    assert_eq!(taken.map(|bytes| bytes[40..].to_vec()), Some(vec![9; MAD]));
    // There is one partition: its index is 0.
    for (index, good) in [(0, true), (1, false)] {
        let attr = QpAttr { state: QpState::Init, pkey_index: index, ..QpAttr::default() };
        let mut other = Host::new(gids[0]);
        other.nic.modify_qp(Instant::ZERO, Qpn::GSI, &QpAttr::default(), AttrMask::STATE).unwrap();
        let mask = AttrMask::to_enter(QpType::Gsi, QpState::Init);
        assert_eq!(other.nic.modify_qp(Instant::ZERO, Qpn::GSI, &attr, mask).is_ok(), good);
    }
}

/// One side of an exchange by handles.
struct Side {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
    gsi: QueuePair,
}

fn side(backend: impl Backend + 'static) -> Side {
    let device = Device::builder(backend).seed(1).open().unwrap();
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
    let mr = pd.register(vec![0; 1024], Access::LOCAL_WRITE).unwrap();
    let gsi = pd.create_qp(QpType::Gsi, &cq, &cq).build().unwrap().activate(QKey::new(0)).unwrap();
    gsi.post_recv(RecvWr::new(1, &[mr.slice(0..296).unwrap()])).unwrap();
    Side { device, pd, cq, mr, gsi }
}

/// A real request for a connection there, and an answer back.
fn exchange(sides: &[Side; 2]) {
    let mads = mads();
    let request = mads.iter().find(|mad| mad.payload.get(16..18) == Some(&CM_REQ[..])).unwrap();
    for (from, to) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        from.mr.write_at(512, &request.payload).unwrap();
        let dgid = to.device.gid(1).unwrap();
        let addr = AddressVector { dgid, sgid_index: 1, ..AddressVector::default() };
        let ah = from.pd.create_ah(addr).unwrap();
        let wr = SendWr::send(2, &[from.mr.slice(512..512 + MAD).unwrap()]);
        from.gsi.post_send(ah.address(wr, Qpn::GSI, GSI_QKEY)).unwrap();
        let got = to.cq.wait(1, Duration::from_secs(10));
        assert_eq!((got.len(), got[0].byte_len, got[0].src_qp), (1, 296, Qpn::GSI));
        assert_eq!(to.mr.to_vec(40..296).unwrap(), request.payload);
    }
}

#[test]
fn two_devices_exchange_management_datagrams_in_memory_and_over_udp() {
    let hub = Loopback::hub();
    exchange(&[2, 3].map(|last| side(hub.attach([127, 0, 0, last].into()).unwrap())));
    exchange(&[(); 2].map(|()| {
        let local = Local::FreeLoopback;
        side(Udp::open(&UdpConfig { local, ..UdpConfig::default() }).unwrap())
    }));
}
