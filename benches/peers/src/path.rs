//! One end of a path: whole batches out, bodies in.

use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use driver_shim::backend::{Backend, Reachability};
use wire::batch::{Caps, HeaderKnowledge, RxBurst, TxBatch};
use wire::{NetHeader, icrc, ip};

use crate::Result;

/// Bytes of the base transport header and the ICRC.
const BTH: usize = 12;
/// Where the payload is copied from and to, so that it is not always the same few lines of the cache.
const REGION: usize = 1 << 20;
/// How long address resolution may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// One end.
pub(crate) struct Path {
    backend: Box<dyn Backend>,
    pub(crate) caps: Caps,
    net: NetHeader,
    pub(crate) payload: usize,
    region: Vec<u8>,
    at: usize,
    rx: RxBurst,
    tx: TxBatch,
    next_id: u16,
    epoch: Instant,
}

impl Path {
    /// An end at `own`, once the way to `peer` is known.
    pub(crate) fn new(backend: Box<dyn Backend>, own: IpAddr, peer: IpAddr, payload: usize) -> Result<Self> {
        let caps = backend.caps();
        let port = caps.src_port.unwrap_or(ip::source_port_of_qpn(1));
        let net = NetHeader::v2(own, peer, port, 0, 64).ok_or("both addresses must be of one family")?;
        let mut path = Self {
            backend,
            caps,
            net,
            payload,
            region: vec![0x5a; REGION],
            at: 0,
            rx: RxBurst::new(),
            tx: TxBatch::new(),
            next_id: 0,
            epoch: Instant::now(),
        };
        while path.backend.prepare(path.now(), peer) != Reachability::Ready {
            if path.epoch.elapsed() > PATIENCE {
                return Err(format!("no way to {peer}").into());
            }
            path.backend.poll(path.now());
            path.receive(|_| ())?;
        }
        Ok(path)
    }

    fn now(&self) -> wire::Instant {
        wire::Instant::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sends up to `most` packets of a batch; returns how many. The first bytes of each payload are `note`.
    pub(crate) fn send(&mut self, most: usize, payload: usize, note: u64) -> Result<usize> {
        self.tx.begin(self.net, &self.caps, self.next_id);
        let len = BTH + payload + icrc::ICRC_LEN;
        while self.tx.len() < most && self.tx.accepts(len, &self.caps) {
            let from = step(&mut self.at, payload);
            let body = self.tx.push(len);
            body[..BTH].fill(0);
            body[BTH..BTH + payload].copy_from_slice(&self.region[from]);
            body[BTH..BTH + 8].copy_from_slice(&note.to_be_bytes());
        }
        self.tx.seal();
        self.next_id = self.next_id.wrapping_add(u16::try_from(self.tx.len())?);
        let mut sent = 0;
        while sent < self.tx.len() {
            sent += self.backend.send_batch(&self.tx, sent)?;
        }
        Ok(sent)
    }

    /// Puts on the wire what was sent.
    pub(crate) fn kick(&mut self) -> Result<()> {
        Ok(self.backend.kick()?)
    }

    /// Receives what is there: checks each ICRC, copies each payload out and gives its note to `take`. Returns how many
    /// there were.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(u64)) -> Result<u64> {
        self.rx.clear();
        if self.backend.recv_burst(&mut self.rx)? == 0 {
            let now = self.now();
            self.backend.poll(now);
        }
        let mut count = 0;
        for (packet, body) in self.rx.iter() {
            let known = packet.knowledge != HeaderKnowledge::Unknown;
            if body.len() < BTH + 8 + icrc::ICRC_LEN || !known || !icrc::verify(&packet.net, body) {
                return Err(
                    "a packet arrived with a wrong ICRC: is another program using this address?".into()
                );
            }
            let payload = &body[BTH..body.len() - icrc::ICRC_LEN];
            let to = step(&mut self.at, payload.len());
            self.region[to].copy_from_slice(payload);
            take(u64::from_be_bytes(payload[..8].try_into()?));
            count += 1;
        }
        Ok(count)
    }
}

/// The next place of `len` bytes in the region.
fn step(at: &mut usize, len: usize) -> Range<usize> {
    if *at + len > REGION {
        *at = 0;
    }
    *at += len;
    *at - len..*at
}
