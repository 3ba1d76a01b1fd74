//! `ferroce pingpong`: the exchange and traffic of `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and
//! `ibv_srq_pingpong`; either end can be the stock tool.

use std::io::Write;
use std::time::{Duration, Instant};

use driver_shim::oob::{DEFAULT_PORT, Exchange, OobError};
use driver_shim::{
    AddressHandle, CompletionQueue, ConnectError, ConnectOptions, Device, Endpoint, MemoryRegion, QpBuilder,
    QueuePair, SharedReceiveQueue,
};
use qp::{Access, AddressVector, Completion, QpType, RecvWr, SendWr, WcStatus};
use wire::{Mtu, QKey, Qpn};

use crate::cmd::device::DeviceArgs;
use crate::cmd::interrupt::Interrupt;
use crate::cmd::{Failure, counters};

/// Command line of `ferroce pingpong`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The server; without it, be one
    #[arg(value_name = "HOST")]
    host: Option<String>,
    /// TCP port of the exchange
    #[arg(short, long, default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Path MTU: 256, 512, 1024, 2048 or 4096; the same at both ends
    #[arg(short, long, default_value = "1024", value_parser = parse_mtu)]
    mtu: Mtu,
    /// Type of the queue pairs; the same at both ends
    #[arg(short = 't', long = "type", value_enum, default_value = "rc")]
    qp_type: Type,
    /// Message size in bytes [default: 4096; 1024 for ud, where the port's MTU is the most]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(..=1 << 30))]
    size: Option<u32>,
    /// Receives posted at a time
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    rx_depth: u32,
    /// Queue pairs on the shared receive queue of srq; the same at both ends
    #[arg(short = 'q', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=255))]
    num_qp: u32,
    /// Messages each way, over all queue pairs
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Service level (accepted; there is no VLAN tag to carry it)
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..8))]
    sl: u8,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    events: bool,
    /// Index of the own GID
    #[arg(short, long, default_value_t = 1)]
    gid_idx: u8,
    /// Check the received bytes
    #[arg(short, long)]
    chk: bool,
    /// Port of the device; there is only 1
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=1))]
    ib_port: u8,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Types of queue pairs that can play.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Type {
    /// Reliable connection, as ibv_rc_pingpong
    Rc,
    /// Unreliable connection, as ibv_uc_pingpong
    Uc,
    /// Unreliable datagrams, as ibv_ud_pingpong
    Ud,
    /// Reliable connections on one shared receive queue, as ibv_srq_pingpong
    Srq,
}

impl From<Type> for QpType {
    fn from(qp_type: Type) -> Self {
        match qp_type {
            Type::Rc | Type::Srq => Self::Rc,
            Type::Uc => Self::Uc,
            Type::Ud => Self::Ud,
        }
    }
}

impl Args {
    fn size(&self) -> u32 {
        self.size.unwrap_or(if self.qp_type == Type::Ud { 1024 } else { 4096 })
    }

    /// Queue pairs at this end.
    fn qps(&self) -> u32 {
        if self.qp_type == Type::Srq { self.num_qp } else { 1 }
    }

    /// Bytes in front of a received message.
    fn header(&self) -> usize {
        if self.qp_type == Type::Ud { GRH } else { 0 }
    }
}

/// The queue key of the stock tool's datagrams.
const QKEY: QKey = QKey::new(0x1111_1111);
/// Room for the network header of a datagram.
const GRH: usize = 40;
const SEND_WRID: u64 = 2;
const RECV_WRID: u64 = 1;
const PAGE: usize = 4096;
const FILL: u8 = 0x7B;
/// How long the device stays after the last message, so that a lost last ACK can be asked for again.
const LINGER: Duration = Duration::from_millis(200);
/// How long the other end may be silent: it repeats what gets no answer many times sooner.
const SILENCE: Duration = Duration::from_secs(20);
const EVENT_WAIT: Duration = Duration::from_millis(100);

pub(super) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "the path MTU is 256, 512, 1024, 2048 or 4096".into())
}

impl From<OobError> for Failure {
    fn from(error: OobError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::Failed(format!("cannot connect the queue pair: {error}"))
    }
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let device = args.device.open()?;
    check(args, &device)?;
    let mut game = Game::connect(args, &device, out)?;
    let start = now();
    let played = game.play();
    let elapsed = start.elapsed();
    let rounds = if played.is_ok() { args.iters } else { game.sent.min(game.received) };
    print_result(out, args.size(), rounds, elapsed).map_err(Failure::output)?;
    played?;
    if args.chk && args.host.is_none() {
        game.check_pages(out)?;
    }
    game.linger();
    device.flush().map_err(|error| Failure::Failed(format!("the capture could not be written: {error}")))
}

fn check(args: &Args, device: &Device) -> Result<(), Failure> {
    let gids = device.addresses().gids().len();
    if usize::from(args.gid_idx) >= gids {
        let last = gids.saturating_sub(1);
        let index = args.gid_idx;
        return Err(Failure::Usage(format!("there is no GID index {index}: this device has 0 to {last}")));
    }
    let most = device.active_mtu().bytes();
    if args.qp_type == Type::Ud && args.size() > most {
        let size = args.size();
        return Err(Failure::Usage(format!(
            "{size} bytes do not fit a datagram: at most {most} here (-s {most})"
        )));
    }
    if args.rx_depth < args.qps() {
        let (depth, qps) = (args.rx_depth, args.qps());
        return Err(Failure::Usage(format!(
            "{depth} receives (-r) are too few for {qps} queue pairs (-q): each needs one"
        )));
    }
    if args.qp_type != Type::Ud && args.mtu > device.active_mtu() {
        let (mtu, active) = (args.mtu, device.active_mtu());
        return Err(Failure::Usage(format!(
            "path MTU {mtu} does not fit the interface: at most {active} (-m {active} at both ends)"
        )));
    }
    Ok(())
}

/// One end of the game.
struct Game<'a> {
    args: &'a Args,
    cq: CompletionQueue,
    mr: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    qps: Vec<Player>,
    /// Where datagrams go.
    to: Option<(AddressHandle, Qpn)>,
    /// Receives that are posted.
    posted: u32,
    sent: u32,
    received: u32,
    interrupt: Interrupt,
    silence: Silence,
}

/// A queue pair, and what it waits for before it sends again.
struct Player {
    qp: QueuePair,
    awaits_send: bool,
    awaits_receive: bool,
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

impl<'a> Game<'a> {
    fn connect(args: &'a Args, device: &Device, out: &mut dyn Write) -> Result<Self, Failure> {
        let pd = device.alloc_pd();
        let cq = device.create_cq((args.rx_depth + args.qps()) as usize).map_err(failed)?;
        let fill = if args.qp_type == Type::Srq { 0 } else { FILL };
        let mr = pd
            .register(vec![fill; args.size() as usize + args.header()], Access::LOCAL_WRITE)
            .map_err(failed)?;
        let shared = args.qp_type == Type::Srq;
        let srq = shared.then(|| pd.create_srq(args.rx_depth, 1)).transpose().map_err(failed)?;
        let prepare = |_| {
            let builder = pd
                .create_qp(args.qp_type.into(), &cq, &cq)
                .max_send_wr(1)
                .max_recv_wr(args.rx_depth)
                .signal_all();
            srq.iter().fold(builder, QpBuilder::srq).build()
        };
        let prepared = (0..args.qps()).map(prepare).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        if args.qp_type != Type::Ud {
            prepared.iter().try_for_each(|qp| qp.init(Access::empty()))?;
        }
        if args.chk && args.host.is_some() {
            for page in (0..args.size() as usize).step_by(PAGE) {
                mr.write_at(page + args.header(), &[0]).map_err(failed)?;
            }
        }
        let mine: Vec<_> = prepared.iter().map(|qp| qp.endpoint(args.gid_idx.into())).collect();
        // A detail of the stock tool: its datagram variant prints a colon here.
        let gid_mark = if args.qp_type == Type::Ud { ':' } else { ',' };
        mine.iter().try_for_each(|end| print_end(out, "local address: ", end, gid_mark))?;
        let exchange = match &args.host {
            Some(host) => Exchange::connect(host, args.port)?,
            None => Exchange::listen(args.port)?,
        };
        let options = ConnectOptions {
            gid_index: args.gid_idx,
            path_mtu: args.mtu,
            access: Access::empty(),
            ..ConnectOptions::default()
        };
        let receive = RecvWr::new(RECV_WRID, &[mr.slice(0..mr.len()).map_err(failed)?]);
        let receives = || (0..args.rx_depth).map(|_| receive.clone());
        let (theirs, qps, to) = match (&srq, prepared) {
            (Some(srq), prepared) => {
                receives().try_for_each(|wr| srq.post_recv(wr)).map_err(failed)?;
                let connect = |theirs: &[Endpoint]| {
                    let pairs = prepared.into_iter().zip(theirs);
                    pairs.map(|(qp, peer)| qp.connect(*peer, &options)).collect::<Result<Vec<_>, _>>()
                };
                let (theirs, qps) =
                    exchange.swap_many(&mine, |theirs| connect(theirs).map_err(Failure::from))?;
                (theirs, qps, None)
            }
            (None, mut prepared) => {
                let Some(prepared) = prepared.pop() else { return Err(failed("no queue pair")) };
                let (theirs, (qp, to)) = if args.qp_type == Type::Ud {
                    let qp = prepared.activate(QKEY)?;
                    receives().try_for_each(|wr| qp.post_recv(wr)).map_err(failed)?;
                    exchange.swap(&mine[0], |theirs| {
                        let addr = AddressVector {
                            dgid: theirs.gid,
                            sgid_index: args.gid_idx,
                            ..AddressVector::default()
                        };
                        Ok::<_, Failure>((qp, Some((pd.create_ah(addr)?, theirs.qpn))))
                    })?
                } else {
                    receives().try_for_each(|wr| prepared.post_recv(wr)).map_err(failed)?;
                    exchange.swap(&mine[0], |theirs| {
                        Ok::<_, Failure>((prepared.connect(theirs, &options)?, None))
                    })?
                };
                (vec![theirs], vec![qp], to)
            }
        };
        // Not before: until now there is nothing to tell, and a signal ends the wait for the other end at once.
        let interrupt = Interrupt::watch()?;
        theirs.iter().try_for_each(|end| print_end(out, "remote address:", end, ','))?;
        let player = |qp| Player { qp, awaits_send: false, awaits_receive: true };
        Ok(Self {
            args,
            cq,
            mr,
            srq,
            qps: qps.into_iter().map(player).collect(),
            to,
            posted: args.rx_depth,
            sent: 0,
            received: 0,
            interrupt,
            silence: Silence::begin(now()),
        })
    }

    /// Sends and receives in turns, on each queue pair, until both are done.
    fn play(&mut self) -> Result<(), Failure> {
        let iters = self.args.iters;
        if self.args.host.is_some() {
            (0..self.qps.len()).try_for_each(|index| self.send(index))?;
        }
        let mut completions = Vec::new();
        while self.sent < iters || self.received < iters {
            if self.interrupt.is_set() {
                return Err(Failure::Failed(format!("interrupted after {} messages", self.received)));
            }
            completions.clear();
            if self.args.events {
                completions = self.cq.wait(16, EVENT_WAIT);
            } else {
                self.cq.poll_into(16, &mut completions);
            }
            if completions.is_empty()
                && self.silence.is_time_to_look(now())
                && let Some(error) = self.cq.device().path_error()
            {
                return Err(Failure::Failed(format!(
                    "the network device is gone after {} messages: {error}",
                    self.received
                )));
            }
            if completions.is_empty()
                && self.silence.is_too_long(now(), || self.cq.device().counters().rcvd_pkts)
            {
                return Err(Failure::Failed(format!(
                    "nothing has come for {SILENCE:?} after {} messages; has the other end ended, was it given \
                     another -t or -n, or is a message lost (-t uc and ud repeat none)?{}",
                    self.received,
                    self.dropped()
                )));
            }
            for wc in &completions {
                let Some(index) = self.qps.iter().position(|player| player.qp.qpn() == wc.qp_num) else {
                    continue;
                };
                self.on_completion(wc, index)?;
                let player = &self.qps[index];
                if self.sent < iters && !player.awaits_send && !player.awaits_receive {
                    self.send(index)?;
                }
            }
        }
        Ok(())
    }

    /// What queue pair `index` has done.
    fn on_completion(&mut self, wc: &Completion, index: usize) -> Result<(), Failure> {
        if wc.status != WcStatus::Success {
            let path = self.cq.device().path_error();
            let advice = path.map_or_else(
                || advice(wc.status).to_owned(),
                |error| format!("; the network device is gone: {error}"),
            );
            return Err(Failure::Failed(format!(
                "failed with status {} for wr_id {}{advice}{}",
                wc.status,
                wc.wr_id,
                self.dropped()
            )));
        }
        let player = &mut self.qps[index];
        if wc.wr_id.value() == SEND_WRID {
            self.sent += 1;
            player.awaits_send = false;
            return Ok(());
        }
        self.received += 1;
        player.awaits_receive = false;
        self.posted -= 1;
        if self.posted <= self.args.qps() {
            while self.posted < self.args.rx_depth {
                let sge = self.mr.slice(0..self.mr.len()).map_err(failed)?;
                let wr = RecvWr::new(RECV_WRID, &[sge]);
                match &self.srq {
                    Some(srq) => srq.post_recv(wr),
                    None => self.qps[index].qp.post_recv(wr),
                }
                .map_err(failed)?;
                self.posted += 1;
            }
        }
        Ok(())
    }

    /// What this end has dropped, for whoever wonders why it failed.
    fn dropped(&self) -> String {
        counters::dropped(self.cq.device())
    }

    /// Sends on queue pair `index`, which then waits for that and for the answer.
    fn send(&mut self, index: usize) -> Result<(), Failure> {
        let sge = self.mr.slice(self.args.header()..self.mr.len()).map_err(failed)?;
        let wr = SendWr::send(SEND_WRID, &[sge]);
        let wr = match &self.to {
            Some((way, qpn)) => way.address(wr, *qpn, QKEY),
            None => wr,
        };
        let player = &mut self.qps[index];
        (player.awaits_send, player.awaits_receive) = (true, true);
        player.qp.post_send(wr).map_err(failed)
    }

    /// Looks at the first byte of every page, as the stock tool does.
    fn check_pages(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let mut wrong = 0;
        for page in (0..self.args.size() as usize).step_by(PAGE) {
            let at = page + self.args.header();
            let byte = self.mr.to_vec(at..at + 1).map_err(|error| Failure::Failed(error.to_string()))?;
            if byte != [0] {
                wrong += 1;
                writeln!(out, "invalid data in page {}", page / PAGE).map_err(Failure::output)?;
            }
        }
        match wrong {
            0 => Ok(()),
            n => Err(Failure::Failed(format!(
                "{n} pages hold wrong data; was the client started with -c as well?"
            ))),
        }
    }

    fn linger(&self) {
        let start = now();
        while start.elapsed() < LINGER && !self.interrupt.is_set() {
            // The device's own thread answers meanwhile.
            drop(self.cq.wait(1, LINGER / 4));
        }
    }
}

/// How long nothing has come. A peer that was ended leaves no send open here that would fail, where its turn was
/// next.
struct Silence {
    since: Instant,
    packets: u64,
    /// When it was last looked whether there is a network device still.
    looked: Instant,
}

impl Silence {
    const fn begin(now: Instant) -> Self {
        Self { since: now, packets: 0, looked: now }
    }

    /// Whether [`EVENT_WAIT`] has passed since the last time that it was so.
    fn is_time_to_look(&mut self, now: Instant) -> bool {
        let is_time = now.duration_since(self.looked) >= EVENT_WAIT;
        if is_time {
            self.looked = now;
        }
        is_time
    }

    /// Whether [`SILENCE`] has passed without a packet; `packets` tells how many came so far.
    fn is_too_long(&mut self, now: Instant, packets: impl FnOnce() -> u64) -> bool {
        if now.duration_since(self.since) < SILENCE {
            return false;
        }
        let packets = packets();
        let silent = packets == self.packets;
        (self.since, self.packets) = (now, packets);
        silent
    }
}

/// What to look at first when this happens.
fn advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExcErr => "; the other end does not answer: address, GID index, path MTU or firewall?",
        WcStatus::LocLenErr => "; the other end sent more than -s says here",
        WcStatus::RemInvReqErr => "; do both ends have the same path MTU (-m) and size (-s)?",
        _ => "",
    }
}

#[expect(clippy::disallowed_methods, reason = "the game measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn print_end(out: &mut dyn Write, what: &str, end: &Endpoint, gid_mark: char) -> Result<(), Failure> {
    writeln!(
        out,
        "  {what} LID 0x0000, QPN 0x{:06x}, PSN 0x{:06x}{gid_mark} GID {}",
        end.qpn.value(),
        end.psn.value(),
        end.gid
    )
    .and_then(|()| out.flush())
    .map_err(Failure::output)
}

fn print_result(out: &mut dyn Write, size: u32, rounds: u32, elapsed: Duration) -> std::io::Result<()> {
    let (seconds, bytes) = (elapsed.as_secs_f64(), u64::from(size) * u64::from(rounds) * 2);
    let micros = seconds * 1e6;
    let per_round = if rounds == 0 { 0.0 } else { micros / f64::from(rounds) };
    writeln!(out, "{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", bytes as f64 * 8.0 / micros)?;
    writeln!(out, "{rounds} iters in {seconds:.2} seconds = {per_round:.2} usec/iter")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_span_without_a_packet_is_silence() {
        let start = now();
        let mut silence = Silence::begin(start);
        assert!(!silence.is_too_long(start + SILENCE / 2, || panic!("too early to ask")));
        assert!(!silence.is_too_long(start + SILENCE, || 3));
        assert!(!silence.is_too_long(start + SILENCE + SILENCE / 2, || 3));
        assert!(silence.is_too_long(start + 2 * SILENCE, || 3));
        assert!(!silence.is_time_to_look(start));
        assert!(silence.is_time_to_look(start + EVENT_WAIT) && !silence.is_time_to_look(start + EVENT_WAIT));
        assert!(Silence::begin(start).is_too_long(start + SILENCE, || 0));
    }
}
