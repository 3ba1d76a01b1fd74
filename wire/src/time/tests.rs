use super::*;

#[test]
fn units() {
    assert_eq!(Instant::from_micros(3), Instant::from_nanos(3_000));
    assert_eq!(Duration::from_secs(2), Duration::from_millis(2_000));
    assert_eq!(Duration::from_millis(2), Duration::from_micros(2_000));
    assert_eq!(Duration::from_micros(2).as_nanos(), 2_000);
    assert!((Duration::from_millis(1_500).as_secs_f64() - 1.5).abs() < 1e-12);
}

#[test]
fn arithmetic_stops_at_the_ends() {
    let (early, late) = (Instant::from_nanos(5), Instant::from_nanos(12));
    assert_eq!(late - early, Duration::from_nanos(7));
    assert_eq!(early - late, Duration::ZERO);
    assert_eq!(early + Duration::from_nanos(7), late);
    let end = Instant::from_nanos(u64::MAX);
    assert_eq!(late + Duration::from_nanos(u64::MAX), end);
    assert_eq!(Duration::from_nanos(u64::MAX) + Duration::from_nanos(1), Duration::from_nanos(u64::MAX));
    let mut now = Instant::ZERO;
    now += Duration::from_nanos(5);
    assert_eq!(now, early);
}

#[test]
fn to_and_from_the_standard_library() {
    let span = Duration::from_micros(1_280);
    assert_eq!(core::time::Duration::from(span), core::time::Duration::from_micros(1_280));
    assert_eq!(Duration::from(core::time::Duration::from_micros(1_280)), span);
    assert_eq!(Duration::from(core::time::Duration::MAX).as_nanos(), u64::MAX);
    assert_eq!(format!("{span:?}"), "1.28ms");
}
