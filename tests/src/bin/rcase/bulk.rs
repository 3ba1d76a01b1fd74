//! Many messages in a row: what survives a lossy wire, and that each takes effect once.

use crate::pair::{Pair, expect_pattern, expect_word};
use crate::side::{Op, Outcome, Recv, Status, check};

/// Bytes of a message: a little over 4 KiB, several packets at any path MTU below 8 KiB, and a stride at which no
/// two messages of a batch hold the same bytes.
pub(crate) const SIZE: u32 = 4096 + 256;
/// Messages posted at once.
const BATCH: u64 = 32;
const WORD_AT: u64 = 0x0070_0000;

/// Sends `count` messages of [`SIZE`] bytes and checks every one.
pub(crate) fn messages(p: &mut Pair<'_>, op: Op, count: u64) -> Outcome {
    let mut first = 0;
    while first < count {
        let n = BATCH.min(count - first);
        let bytes = n * u64::from(SIZE);
        let seed = u8::try_from((first / BATCH) & 0x7f).unwrap_or_default();
        p.source(op).fill(0, bytes, seed, 0)?;
        p.sink(op).fill(0, bytes, !seed, 0)?;
        let at = |k: u64| k * u64::from(SIZE);
        if op.takes_receive() {
            let sge = |k| if op.is_send() { vec![(at(k), SIZE)] } else { Vec::new() };
            let receives: Vec<_> = (0..n).map(|k| Recv { id: first + k, sge: sge(k) }).collect();
            p.server.post_recv(&receives)?;
        }
        let requests: Vec<_> = (0..n).map(|k| p.request(op, vec![(at(k), SIZE)], at(k))).collect();
        p.client.post_send(&requests)?;
        let batch = usize::try_from(n).unwrap_or(usize::MAX);
        let done = p.client_done(batch, Status::SUCCESS)?;
        check(done.iter().map(|wc| wc.id).eq(requests.iter().map(|r| r.id)), || {
            "the client's completions are out of order".to_owned()
        })?;
        if op.takes_receive() {
            let got = p.server_done(batch)?;
            check(got.iter().map(|wc| wc.id).eq(first..first + n), || "receives out of order".to_owned())?;
            check(got.iter().map(|wc| wc.imm).eq(requests.iter().map(|r| r.imm)), || {
                "an immediate is wrong".to_owned()
            })?;
        }
        expect_pattern(p.sink(op), 0, bytes, seed, 0)?;
        first += n;
    }
    Ok(())
}

/// Counts a word up with `count` atomics; each must see the value that the one before it left.
pub(crate) fn atomics(p: &mut Pair<'_>, op: Op, count: u64) -> Outcome {
    p.server.put(WORD_AT, &0u64.to_le_bytes())?;
    let mut first = 0;
    while first < count {
        let n = BATCH.min(count - first);
        let requests: Vec<_> = (0..n)
            .map(|k| {
                let mut request = p.request(op, vec![(8 * k, 8)], WORD_AT);
                (request.compare_add, request.swap) =
                    if op == Op::CmpSwap { (first + k, first + k + 1) } else { (1, 0) };
                request
            })
            .collect();
        p.client.post_send(&requests)?;
        p.client_done(usize::try_from(n).unwrap_or(usize::MAX), Status::SUCCESS)?;
        let back = p.client.get(0, 8 * n)?;
        let want: Vec<u8> = (first..first + n).flat_map(u64::to_le_bytes).collect();
        check(back == want, || format!("operations {first} to {}: a wrong value came back", first + n - 1))?;
        first += n;
    }
    expect_word(p.server, WORD_AT, count)
}
