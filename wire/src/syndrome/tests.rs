use super::*;

/// Milliseconds of the codes 0 to 31, as published.
const RNR_MILLIS: [&str; 32] = [
    "655.36", "0.01", "0.02", "0.03", "0.04", "0.06", "0.08", "0.12", "0.16", "0.24", "0.32", "0.48", "0.64",
    "0.96", "1.28", "1.92", "2.56", "3.84", "5.12", "7.68", "10.24", "15.36", "20.48", "30.72", "40.96",
    "61.44", "81.92", "122.88", "163.84", "245.76", "327.68", "491.52",
];

/// Credits of the codes 0 to 30, as published.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

#[test]
fn rnr_timers_are_the_published_ones() {
    // Rule R-REQ-22.
    for (code, millis) in (0..).zip(RNR_MILLIS) {
        let (whole, cents) = millis.split_once('.').unwrap();
        let micros = whole.parse::<u64>().unwrap() * 1000 + cents.parse::<u64>().unwrap() * 10;
        let timer = RnrTimer::new(code).unwrap();
        assert_eq!(timer.duration(), Duration::from_micros(micros), "code {code}");
        assert_eq!(timer.code(), code);
    }
    assert_eq!(RnrTimer::new(32), None);
}

#[test]
fn credits_are_the_published_ones() {
    // Rule R-REQ-18.
    for (code, count) in (0..).zip(CREDITS) {
        assert_eq!(Credits::new(code).unwrap().count(), Some(count), "code {code}");
    }
    assert_eq!(Credits::UNLIMITED.code(), 31);
    assert_eq!(Credits::UNLIMITED.count(), None);
    assert_eq!(Credits::new(32), None);
}

#[test]
fn every_byte_decodes_and_encodes_back() {
    // Rule R-WIR-24.
    for byte in 0..=u8::MAX {
        let syndrome = Syndrome::from_byte(byte);
        assert_eq!(syndrome.byte(), byte);
        assert_eq!(syndrome.is_ack(), byte < 0x20, "{byte:#04x}");
        let low = byte & 0x1F;
        match byte {
            0x00..=0x1F => assert_eq!(syndrome, Syndrome::Ack(Credits::new(low).unwrap())),
            0x20..=0x3F => assert_eq!(syndrome, Syndrome::RnrNak(RnrTimer::new(low).unwrap())),
            0x60..=0x7F => assert!(matches!(syndrome, Syndrome::Nak(code) if code.code() == low)),
            _ => assert_eq!(syndrome, Syndrome::Reserved(byte)),
        }
    }
}

#[test]
fn nak_codes() {
    // Rule R-CMP-9.
    let list = [
        (0x60, NakCode::PsnSequenceError, "nak=psn_sequence"),
        (0x61, NakCode::InvalidRequest, "nak=invalid_request"),
        (0x62, NakCode::RemoteAccessError, "nak=remote_access"),
        (0x63, NakCode::RemoteOperationalError, "nak=remote_operational"),
        (0x64, NakCode::InvalidRdRequest, "nak=invalid_rd_request"),
        (0x65, NakCode::Reserved(5), "nak=reserved_5"),
        (0x7F, NakCode::Reserved(31), "nak=reserved_31"),
    ];
    for (byte, code, text) in list {
        assert_eq!(Syndrome::from_byte(byte), Syndrome::Nak(code));
        assert_eq!(Syndrome::Nak(code).to_string(), text);
    }
}

#[test]
fn printing() {
    assert_eq!(Syndrome::ACK.to_string(), "ack");
    assert_eq!(Syndrome::from_byte(0x06).to_string(), "ack credits=8");
    assert_eq!(Syndrome::from_byte(0x20).to_string(), "rnr_nak timer=655.36ms");
    assert_eq!(Syndrome::from_byte(0x21).to_string(), "rnr_nak timer=10µs");
    assert_eq!(Syndrome::from_byte(0x9F).to_string(), "syndrome=0x9f");
}
