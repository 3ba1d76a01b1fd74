//! Bytes that queue pairs and work requests take, counted at the allocator.

use ferroce_qp::{QpCap, QpType, RecvWr};

use crate::link::{Link, Work, sge};
use crate::report::{Table, rows};

/// Bytes asked of the allocator and not given back.
fn allocated() -> f64 {
    crate::ALLOCATOR.allocated() as f64
}

/// Bytes for each of `count` things that `make` makes.
fn each<W>(count: usize, world: &mut W, make: impl FnOnce(&mut W)) -> f64 {
    let before = allocated();
    make(world);
    (allocated() - before) / count as f64
}

/// Bytes of a queue pair, by what it has come to. The table of queue pairs counts in.
pub(crate) fn queue_pairs(count: usize) -> Table {
    // Completions wait in a queue that is not a queue pair's: it gets its room before.
    let cap = QpCap::default();
    let reset = each(count, &mut Link::new(64), |link| {
        for _ in 0..count {
            link.near.create(QpType::Rc, cap);
        }
    });
    // Connections have two ends.
    let connected = |qp_type| {
        each(2 * count, &mut Link::new(64), |link| {
            for _ in 0..count {
                link.connect(qp_type, cap);
            }
        })
    };
    let mut link = Link::new(64);
    let warm = link.connect(QpType::Rc, cap);
    let mut pairs = Vec::new();
    let talk = |link: &mut Link, pair| {
        link.post(pair, Work::Send, 64, 1);
        link.carry();
        link.reap();
    };
    talk(&mut link, warm);
    let used = each(2 * count, &mut link, |link| {
        pairs = link.connect_many(count);
        pairs.iter().for_each(|pair| talk(link, *pair));
    });
    let used = used - (size_of_val(&*pairs) as f64) / (2 * count) as f64;
    let rows = rows([
        ("RC in RESET", reset),
        ("RC in RTS, connected", connected(QpType::Rc)),
        ("UC in RTS, connected", connected(QpType::Uc)),
        ("UD in RTS", connected(QpType::Ud)),
        ("RC in RTS, one message later", used),
    ]);
    Table { name: "an idle queue pair", unit: "bytes", rows }
}

/// Bytes of a work request that waits, of a queue pair whose queues are full.
pub(crate) fn work_requests() -> Table {
    let most = QpCap::MAX.max_send_wr;
    let cap = QpCap { max_send_wr: most, max_recv_wr: most, ..QpCap::default() };
    let mut link = Link::new(64);
    let pair = link.connect(QpType::Rc, cap);
    let send = each(most as usize, &mut link, |link| link.post(pair, Work::Write, 64, most.into()));
    let mut recv_of = |pieces: usize| {
        let pair = link.connect(QpType::Rc, cap);
        let piece = sge(&link.far.mr, 64);
        each(most as usize, &mut link, |link| {
            for id in 0..most.into() {
                let wr = RecvWr::new(id, &vec![piece; pieces]);
                link.far.nic.post_recv(link.now, pair.far, wr).expect("room for a receive");
            }
        })
    };
    let (recv, recv_4) = (recv_of(1), recv_of(4));
    let rows = rows([("send, 1 piece", send), ("receive, 1 piece", recv), ("receive, 4 pieces", recv_4)]);
    Table { name: "a posted work request", unit: "bytes", rows }
}
