use proptest::prelude::*;

use super::*;

const TURN: u32 = 1 << 24;

/// Rule R-REQ-1.
#[test]
fn psn_distances_around_the_wrap() {
    let psn = Psn::new;
    assert_eq!(psn(0xFF_FFFF).wrapping_add(1), psn(0));
    assert_eq!(psn(0).wrapping_sub(1), psn(0xFF_FFFF));
    assert_eq!(psn(2).diff(psn(0xFF_FFFE)), 4);
    assert_eq!(psn(0xFF_FFFE).diff(psn(2)), -4);
    assert_eq!(psn(2).steps_from(psn(0xFF_FFFE)), 4);
    assert_eq!(psn(0xFF_FFFE).steps_from(psn(2)), TURN - 4);
    // Half a turn away counts as behind.
    assert_eq!(psn(0x80_0000).diff(psn(0)), -0x80_0000);
    assert_eq!(psn(0x7F_FFFF).diff(psn(0)), 0x7F_FFFF);
}

#[test]
fn psn_windows() {
    let psn = Psn::new;
    assert!(!psn(5).in_window(psn(5), 0));
    assert!(psn(5).in_window(psn(5), 1));
    assert!(!psn(6).in_window(psn(5), 1));
    assert!(psn(1).in_window(psn(0xFF_FFFF), 3));
    assert!(!psn(2).in_window(psn(0xFF_FFFF), 3));
    assert!(!psn(4).in_window(psn(5), 1 << 23));
}

proptest! {
    #[test]
    fn psn_is_a_circle(start in 0..TURN, steps: u32) {
        let (a, low) = (Psn::new(start), steps % TURN);
        prop_assert_eq!(Psn::new(start + TURN), a);
        prop_assert_eq!(a.wrapping_add(steps), a.wrapping_add(low));
        let sum = (u64::from(start) + u64::from(steps)) % u64::from(TURN);
        prop_assert_eq!(u64::from(a.wrapping_add(steps).value()), sum);
        prop_assert_eq!(a.wrapping_add(steps).wrapping_sub(steps), a);
        prop_assert_eq!(a.wrapping_add(steps).steps_from(a), low);
    }

    #[test]
    fn psn_diff_is_the_short_way(start in 0..TURN, distance in -(1_i32 << 23)..1 << 23) {
        let a = Psn::new(start);
        let n = distance.unsigned_abs();
        let b = if distance < 0 { a.wrapping_sub(n) } else { a.wrapping_add(n) };
        prop_assert_eq!(b.diff(a), distance);
        if distance != -(1 << 23) {
            prop_assert_eq!(a.diff(b), -distance);
        }
    }

    #[test]
    fn psn_window_counts_its_members(start in 0..TURN, len in 0..TURN, offset in 0..TURN) {
        let start = Psn::new(start);
        prop_assert_eq!(start.wrapping_add(offset).in_window(start, len), offset < len);
    }
}

#[test]
fn narrow_numbers_are_masked() {
    assert_eq!(Qpn::new(0xFF00_0001).value(), 1);
    assert_eq!(Srqn::new(0x0100_0000).value(), 0);
    assert_eq!(Msn::new(0xFFFF_FFFF).next(), Msn::new(0));
}

#[test]
fn partition_keys_match() {
    // Rules R-ADR-3 and F41.
    let matches = |a, b| {
        let (a, b) = (PKey::new(a), PKey::new(b));
        assert_eq!(a.matches(b), b.matches(a), "{a} {b}");
        a.matches(b)
    };
    assert!(matches(0xFFFF, 0x7FFF));
    assert!(matches(0xFFFF, 0xFFFF));
    assert!(matches(0x2A00, 0xAA00));
    assert!(!matches(0x7FFF, 0x7FFF));
    assert!(!matches(0x8000, 0x8000));
    assert!(!matches(0x8000, 0x0000));
    assert!(!matches(0xFFFF, 0xFFFE));
    assert!(!matches(0xAA00, 0xAA01));
}

#[test]
fn path_mtu_of_an_interface() {
    // Rules R-ADR-1 and F38.
    let cases = [
        (1500, Some(Mtu::B1024)),
        (2200, Some(Mtu::B2048)),
        (4200, Some(Mtu::B4096)),
        (9000, Some(Mtu::B4096)),
        (65536, Some(Mtu::B4096)),
        (4192, Some(Mtu::B4096)),
        (4191, Some(Mtu::B2048)),
        (2144, Some(Mtu::B2048)),
        (2143, Some(Mtu::B1024)),
        (352, Some(Mtu::B256)),
        (351, None),
        (0, None),
    ];
    for (interface, path) in cases {
        assert_eq!(Mtu::for_interface(interface), path, "{interface}");
    }
}

#[test]
fn mtu_codes() {
    // Rule R-ADR-20.
    let table = [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)];
    for (code, bytes) in table {
        let mtu = Mtu::from_code(code).unwrap();
        assert_eq!((mtu.code(), mtu.bytes()), (code, bytes));
        assert_eq!(Mtu::from_bytes(bytes), Some(mtu));
    }
    for code in [0, 6, 255] {
        assert_eq!(Mtu::from_code(code), None);
    }
    for bytes in [0, 128, 1023, 8192] {
        assert_eq!(Mtu::from_bytes(bytes), None);
    }
}

/// Rule R-ADR-19.
#[test]
fn addresses_and_gids() {
    // Rules R-ADR-5 and R-ADR-7.
    let v4: IpAddr = [192, 0, 2, 1].into();
    let gid = Gid::from(v4);
    assert_eq!(gid.raw(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 1]);
    assert_eq!(gid.ip(), v4);
    assert!(gid.is_v4() && !gid.is_link_local());

    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    assert_eq!(Gid::from(v6).ip(), v6);
    assert!(!Gid::from(v6).is_v4());

    let local = Mac([0x02, 0x00, 0x5E, 0x10, 0x00, 0x01]).link_local_gid();
    assert_eq!(local.to_string(), "fe80::5eff:fe10:1");
    assert!(local.is_link_local());
    assert_eq!(Mac([0x50, 0x54, 0, 0x12, 0x34, 0x56]).eui64(), [0x52, 0x54, 0, 0xFF, 0xFE, 0x12, 0x34, 0x56]);
}

#[test]
fn virtual_addresses_do_not_wrap_unseen() {
    // Rule F3.
    let high = VirtAddr::new(0xFFFF_FFFF_FFFF_FC00);
    assert_eq!(high.checked_add(0x3FF), Some(VirtAddr::new(u64::MAX)));
    assert_eq!(high.checked_add(0x400), None);
    assert_eq!(high.wrapping_add(0x400), VirtAddr::new(0));
}

/// Rules R-ADR-22, R-ADR-23.
#[test]
fn groups_are_told_from_hosts_and_have_ethernet_addresses_of_their_own() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    for (group, mac) in [
        ("224.0.0.1", [0x01, 0x00, 0x5E, 0, 0, 1]),
        ("239.255.255.255", [0x01, 0x00, 0x5E, 0x7F, 0xFF, 0xFF]),
        ("ff0e::ffff:e001:203", [0x33, 0x33, 0xE0, 0x01, 0x02, 0x03]),
        ("ff02::1", [0x33, 0x33, 0, 0, 0, 1]),
    ] {
        assert!(Gid::from(ip(group)).is_multicast(), "{group}");
        assert_eq!(Mac::of_group(ip(group)), Mac(mac), "{group}");
    }
    for host in ["10.0.0.1", "240.0.0.1", "223.255.255.255", "fe80::1", "2001:db8::ff"] {
        assert!(!Gid::from(ip(host)).is_multicast(), "{host}");
    }
    assert!(!Gid::ZERO.is_multicast());
}
