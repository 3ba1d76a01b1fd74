use wire::icrc;

use super::*;
use crate::backend::namespace;

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);

fn open(address: &str, offload: bool) -> Udp {
    let local = Local::Address(address.parse().expect("address"));
    Udp::open(&UdpConfig { local, offload, ..UdpConfig::default() }).expect("the udp back end opens")
}

/// Sends `sizes.len()` batches of so many packets, and says how many of the packets came with another
/// identification than their place suggests.
fn exchange(sender: &mut Udp, receiver: &mut Udp, sizes: &[usize]) -> usize {
    let [src, dst] = [&*sender, &*receiver].map(|udp| udp.sockets.all()[0].address);
    let net = NetHeader::v2(src, dst, ROCE_V2_PORT, 0, 64).expect("one family");
    let (mut tx, mut sent) = (TxBatch::new(), Vec::new());
    for size in sizes {
        tx.begin(net, &sender.caps(), 99);
        for _ in 0..*size {
            let mark = u32::try_from(sent.len()).expect("few");
            sent.push(mark);
            tx.push(1040)[..4].copy_from_slice(&mark.to_be_bytes());
        }
        tx.seal();
        assert_eq!(sender.send_batch(&tx, 0).expect("sends"), *size);
    }
    let mut rx = RxBurst::new();
    while rx.len() < sent.len() {
        assert!(
            sys::wait_readable(receiver.sockets.all()[0].fd(), LIMIT).expect("poll"),
            "{} came",
            rx.len()
        );
        receiver.recv_burst(&mut rx).expect("receives");
    }
    let (mut came, mut other) = (Vec::new(), 0);
    for (packet, body) in rx.iter() {
        let id = icrc::solve_id(&packet.net, body).expect("a right ICRC");
        assert!(id < ID_BOUND, "{id}");
        other += usize::from(!icrc::verify(&packet.net, body));
        came.push(u32::from_be_bytes([body[0], body[1], body[2], body[3]]));
    }
    assert_eq!(came, sent);
    assert_eq!(receiver.counters().rx_lost, 0);
    other
}

/// The kernel joins packets whose identifications count up, or stay the same, or does
/// not: whatever the way does, packets come with ICRCs that are right.
fn splits_and_joins() {
    namespace::cross();
    let sizes = [1, 1, 1, 3, 62, 1, 2, 2, 30, 1, 1];
    let open_two = |offload| (open("10.77.0.1", offload), open("10.77.0.2", true));
    let (mut a, mut b) = open_two(true);
    assert_eq!(exchange(&mut a, &mut b, &sizes), 0, "runs pass whole");
    drop((a, b));
    if !namespace::features("veth0 tx-udp-segmentation off") {
        return println!("skipped: no ethtool that changes what veth can do");
    }
    let (mut a, mut b) = open_two(true);
    // All but the first of a run, each of which comes alone.
    let apart = sizes.iter().map(|size| size - 1).sum();
    assert_eq!(exchange(&mut a, &mut b, &sizes), apart, "runs are split on the way");
    drop((a, b));
    // The far end joins what comes.
    assert!(namespace::features("veth1 gro on"));
    for (offload, most) in [(true, apart), (false, sizes.iter().sum())] {
        let (mut a, mut b) = open_two(offload);
        assert!(exchange(&mut a, &mut b, &sizes) <= most);
        drop((a, b));
    }
}

/// Rules R-ADM-17 and R-WIR-35.
#[test]
fn runs_that_the_path_splits_and_joins_arrive_with_right_icrcs() {
    namespace::run(
        "backend::udp::veth_tests::runs_that_the_path_splits_and_joins_arrive_with_right_icrcs",
        splits_and_joins,
    );
}
