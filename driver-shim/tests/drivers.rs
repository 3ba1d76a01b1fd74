//! Every driver carries every operation, whoever drives the other end, and however the program waits.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use ferroce_driver_shim::backend::Loopback;
use ferroce_driver_shim::{CompletionQueue, ConnectOptions, Device, Driver, MemoryRegion, QueuePair};
use qp::{Access, Completion, QpType, RecvWr, SendWr, WcStatus};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 100_000;

/// Nothing gets lost here, and nothing is to be repeated only because the machine is busy.
fn patient() -> ConnectOptions {
    ConnectOptions { timeout: 20, ..ConnectOptions::default() }
}

struct End {
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

fn connected(drivers: [Driver; 2]) -> [End; 2] {
    let hub = Loopback::hub();
    let mut last = 1;
    let prepared = drivers.map(|driver| {
        last += 1;
        let backend = hub.attach([127, 0, 0, last].into()).unwrap();
        let device = Device::builder(backend).seed(last.into()).driver(driver).open().unwrap();
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.register(vec![last; 3 * LEN], access).unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq, &cq).signal_all().build().unwrap();
        (cq, mr, qp)
    });
    let mut peers = [prepared[1].2.endpoint(1), prepared[0].2.endpoint(1)].into_iter();
    prepared.map(|(cq, mr, qp)| {
        let qp = qp.connect(peers.next().unwrap(), &patient()).unwrap();
        End { cq, mr, qp }
    })
}

fn by_polling(cq: &CompletionQueue) -> Completion {
    let mut out = Vec::new();
    while cq.poll_into(1, &mut out) == 0 {}
    out[0]
}

fn by_waiting(cq: &CompletionQueue) -> Completion {
    cq.wait(1, LIMIT)[0]
}

#[test]
fn whoever_drives_every_operation_completes() {
    for near in Driver::ALL {
        for far in Driver::ALL {
            for next in [by_polling, by_waiting] {
                let [a, b] = connected([near, far]);
                let part = |end: &End, n: usize| end.mr.slice(n * LEN..(n + 1) * LEN).unwrap();
                b.qp.post_recv(RecvWr::new(1, &[part(&b, 0)])).unwrap();
                // The far end says nothing while these run.
                let (at, key) = (b.mr.addr(), b.mr.rkey());
                let counter = a.mr.slice(2 * LEN..2 * LEN + 8).unwrap();
                a.qp.post_send_list([
                    SendWr::send(2, &[part(&a, 0)]),
                    SendWr::write(3, &[part(&a, 1)], at.wrapping_add(LEN as u64), key),
                    SendWr::read(4, &[part(&a, 0)], at.wrapping_add(2 * LEN as u64), key),
                    SendWr::fetch_add(5, counter, at.wrapping_add(2 * LEN as u64), key, 1),
                ])
                .unwrap();
                for id in 2..=5 {
                    let wc = next(&a.cq);
                    assert_eq!((wc.wr_id.value(), wc.status), (id, WcStatus::Success), "{near} to {far}");
                }
                assert_eq!(next(&b.cq).status, WcStatus::Success, "{near} to {far}");
                let read = |end: &End, n: usize| {
                    let mut bytes = vec![0; LEN];
                    end.mr.read_at(n * LEN, &mut bytes).unwrap();
                    bytes
                };
                assert!([0, 1].into_iter().all(|n| read(&b, n) == [2; LEN]), "{near} to {far}");
                assert!(read(&a, 0) == [3; LEN], "{near} to {far}");
            }
        }
    }
}
