//! A connected pair of sides, and the steps that most cases share.

use std::time::Duration;

use crate::side::{
    Completion, Endpoint, Failure, Flag, Kind, Link, Op, Outcome, Piece, Recv, Right, Send, Side, Status,
    check,
};

/// First PSN of the client's requests: it wraps around within the first few.
const CLIENT_PSN: u32 = 0x00ff_fffa;
const SERVER_PSN: u32 = 0x0000_abcd;

/// How long a completion may take before the case has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a case wants its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Type of the queue pairs.
    pub(crate) kind: Kind,
    /// Attributes of both ends.
    pub(crate) link: Link,
    /// What the server's queue pair lets the client do.
    pub(crate) rights: &'static [Right],
    /// Leaves the server unconnected, and points the client at a queue pair that does not exist.
    pub(crate) nobody: bool,
}

impl Setup {
    /// An ordinary connection with this path MTU.
    pub(crate) const fn new(mtu: u32) -> Self {
        Self { kind: Kind::Rc, link: Link::new(mtu), rights: &Right::ALL, nobody: false }
    }
}

/// The client sends all the requests of a case, the server answers them.
pub(crate) struct Pair<'a> {
    pub(crate) client: &'a mut dyn Side,
    pub(crate) server: &'a mut dyn Side,
    /// Type of the queue pairs.
    pub(crate) kind: Kind,
    /// How the client reaches the server's memory.
    pub(crate) remote: Endpoint,
    next_id: u64,
}

impl<'a> Pair<'a> {
    /// Makes a queue pair on each side and connects the two.
    pub(crate) fn connect(
        client: &'a mut dyn Side,
        server: &'a mut dyn Side,
        setup: &Setup,
    ) -> Outcome<Self> {
        let local = client.open(setup.kind, CLIENT_PSN, &Right::ALL)?;
        let mut remote = server.open(setup.kind, SERVER_PSN, setup.rights)?;
        if setup.nobody {
            remote.qpn = 0x007f_fff0;
        } else {
            server.connect(&local, &setup.link)?;
        }
        client.connect(&remote, &setup.link)?;
        Ok(Self { client, server, kind: setup.kind, remote, next_id: 1 })
    }

    /// The side whose memory an operation reads.
    pub(crate) fn source(&mut self, op: Op) -> &mut dyn Side {
        if op == Op::RdmaRead { self.server } else { self.client }
    }

    /// The side whose memory an operation writes.
    pub(crate) fn sink(&mut self, op: Op) -> &mut dyn Side {
        if op == Op::RdmaRead { self.client } else { self.server }
    }

    /// A signalled request on `sge`; where the operation has a remote address, it is `at` in the server's
    /// region.
    pub(crate) fn request(&mut self, op: Op, sge: Vec<Piece>, at: u64) -> Send {
        let id = self.next_id;
        self.next_id += 1;
        Send {
            id,
            op,
            sge,
            imm: op.has_imm().then_some(0x0102_0300 + u32::try_from(id & 0xff).unwrap_or_default()),
            rkey: (!op.is_send()).then_some(self.remote.rkey),
            addr: self.remote.addr.wrapping_add(at),
            len: 0,
            compare_add: 0,
            swap: 0,
            flags: vec![Flag::Signaled],
        }
    }

    /// [`Pair::request`], posted alone.
    pub(crate) fn post(&mut self, op: Op, sge: Vec<Piece>, at: u64) -> Outcome {
        let request = self.request(op, sge, at);
        self.client.post_send(&[request])
    }

    /// A row that is for two devices which both have `op`.
    pub(crate) fn need(&mut self, op: Op) -> Outcome {
        for side in [&mut *self.client, &mut *self.server] {
            if !side.has(op)? {
                return Err(Failure::Unsupported(format!("{}: no {}", side.name(), op.name())));
            }
        }
        Ok(())
    }

    /// Posts a receive at the server.
    pub(crate) fn recv(&mut self, sge: Vec<Piece>) -> Outcome {
        let id = self.next_id;
        self.next_id += 1;
        self.server.post_recv(&[Recv { id, sge }])
    }

    /// The client's next `n` completions, each with this status.
    pub(crate) fn client_done(&mut self, n: usize, status: Status) -> Outcome<Vec<Completion>> {
        done(self.client, n, &[status])
    }

    /// The client's next completion, with one of these statuses.
    pub(crate) fn client_done_as(&mut self, statuses: &[Status]) -> Outcome {
        done(self.client, 1, statuses).map(drop)
    }

    /// The server's next `n` completions, all good.
    pub(crate) fn server_done(&mut self, n: usize) -> Outcome<Vec<Completion>> {
        done(self.server, n, &[Status::SUCCESS])
    }
}

fn done(side: &mut dyn Side, n: usize, statuses: &[Status]) -> Outcome<Vec<Completion>> {
    let got = side.poll(n, PATIENCE)?;
    let name = side.name();
    for wc in &got {
        check(statuses.contains(&wc.status), || {
            format!(
                "{name}: work request {} completed with status {}, expected {statuses:?}",
                wc.id, wc.status.0
            )
        })?;
    }
    if got.len() < n {
        return Err(Failure::Missing { side: name, got: got.len(), of: n });
    }
    Ok(got)
}

/// Fails unless `side` holds the pattern of `seed`, from its byte `skip` on.
pub(crate) fn expect_pattern(side: &mut dyn Side, off: u64, len: u64, seed: u8, skip: u64) -> Outcome {
    let at = side.difference(off, len, seed, skip)?;
    let name = side.name();
    check(at.is_none(), || format!("{name}: byte {} of {len} at {off:#x} is wrong", at.unwrap_or_default()))
}

/// Fails unless `side` holds this 64-bit word.
pub(crate) fn expect_word(side: &mut dyn Side, off: u64, want: u64) -> Outcome {
    let bytes = side.get(off, 8)?;
    let name = side.name();
    check(bytes == want.to_le_bytes(), || format!("{name}: {bytes:02x?} at {off:#x}, expected {want:#x}"))
}
