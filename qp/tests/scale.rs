//! Service to many queue pairs at once, in virtual time. What the benchmark `scale` prints is held to its aim here.

#[path = "../benches/scale/link.rs"]
#[expect(dead_code, reason = "the benchmark needs more of it")]
mod link;
#[path = "../benches/scale/service.rs"]
mod service;

#[test]
fn ten_thousand_busy_queue_pairs_are_served_alike() {
    let bytes = service::bytes_by_pair(10_000);
    let index = service::jain(&bytes);
    assert!(index >= 0.99, "Jain's index is {index}");
    let (least, most) = (bytes.iter().min(), bytes.iter().max());
    assert!(least.is_some_and(|n| *n > 0), "someone got nothing, while another got {most:?}");
}

#[test]
fn the_index_is_one_for_equal_shares_and_small_for_one_that_has_all() {
    for (shares, index) in [(vec![7; 10], 1.0), (vec![5, 0], 0.5), (vec![0, 0, 9, 0], 0.25)] {
        assert!((service::jain(&shares) - index).abs() < 1e-12, "{shares:?}");
    }
}
