use proptest::prelude::*;
use wire::ROCE_V2_PORT;

use super::*;

fn pair() -> (Writer, Reader) {
    let (writer, file) = Writer::new().expect("memory");
    (writer, Reader::new(file).expect("memory is sealed"))
}

fn net(len: usize) -> NetHeader {
    let v2 = NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), ROCE_V2_PORT, 0, 64);
    v2.expect("one family").with_transport_len(len)
}

fn take_all(reader: &mut Reader, limit: usize) -> Result<Vec<Vec<u8>>, Torn> {
    let mut out = Vec::new();
    reader.take(limit, |len, copy| {
        let mut bytes = vec![0; len];
        copy(&mut bytes);
        out.push(bytes);
    })?;
    Ok(out)
}

fn packet(body: &[u8]) -> Vec<u8> {
    let net = net(body.len());
    let mut bytes = vec![0; net.len()];
    net.emit(&mut bytes);
    [bytes.as_slice(), body].concat()
}

#[test]
fn records_come_out_as_they_went_in_across_the_end_of_the_memory() {
    let (mut writer, mut reader) = pair();
    // More than twice the memory, in lengths that meet its end in the middle.
    for i in 0..1500 {
        let body = vec![u8::try_from(i % 251).expect("small"); 17 + (i * 97) % 4100];
        assert_eq!(writer.push(&net(body.len()), &body), Ok(true));
        writer.publish();
        assert_eq!(take_all(&mut reader, 9), Ok(vec![packet(&body)]));
    }
}

#[test]
fn a_full_ring_takes_nothing_until_something_is_read() {
    let (mut writer, mut reader) = pair();
    let body = vec![5; 4112];
    let mut pushed = 0;
    while writer.push(&net(body.len()), &body).expect("whole") {
        pushed += 1;
    }
    assert!(pushed >= packets(), "{pushed}");
    assert_eq!(take_all(&mut reader, 1).expect("whole").len(), 1);
    assert_eq!(writer.push(&net(body.len()), &body), Ok(true));
    assert_eq!(writer.push(&net(body.len()), &body), Ok(false));
    assert_eq!(take_all(&mut reader, usize::MAX).expect("whole").len(), pushed as usize);
}

#[test]
fn what_is_not_published_is_not_read() {
    let (mut writer, mut reader) = pair();
    assert_eq!(writer.push(&net(16), &[1; 16]), Ok(true));
    assert_eq!(take_all(&mut reader, 9), Ok(vec![]));
    writer.publish();
    assert_eq!(take_all(&mut reader, 9).map(|all| all.len()), Ok(1));
}

#[test]
fn a_reader_that_sleeps_is_told_once_and_one_that_does_not_is_not() {
    let (mut writer, mut reader) = pair();
    let send = |writer: &mut Writer| {
        assert_eq!(writer.push(&net(16), &[1; 16]), Ok(true));
        writer.publish();
    };
    assert!(!writer.must_tell(), "nothing is there");
    send(&mut writer);
    assert!(writer.must_tell(), "a reader that knows of no ring yet sleeps");
    assert!(!writer.must_tell());
    send(&mut writer);
    assert!(!writer.must_tell(), "it has not gone to sleep again");
    assert_eq!(reader.sleep(), Ok(false), "there are records");
    assert_eq!(take_all(&mut reader, 9).map(|all| all.len()), Ok(2));
    assert_eq!(reader.sleep(), Ok(true));
    send(&mut writer);
    assert!(writer.must_tell());
    assert_eq!(reader.sleep(), Ok(false));
}

#[test]
fn memory_of_another_size_or_without_a_seal_is_refused() {
    let small = sys::sealed_memory(c"test", 4096).expect("memory");
    assert!(Reader::new(small).is_err());
    let file = tempfile::tempfile().expect("a file");
    file.set_len(MEMORY as u64).expect("a longer file");
    assert!(Reader::new(file).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever another process writes to the memory, what is read is within it: an error, or copies of at most the
    /// longest packet and never more of them than fit.
    #[test]
    fn a_hostile_writer_gains_nothing(
        produced: u32,
        consumed: u32,
        lens in proptest::collection::vec(prop_oneof![0u32..5000, any::<u32>()], 0..40),
        fill: u8,
        limit in 1usize..100,
    ) {
        let (writer, mut reader) = pair();
        let map = &writer.map;
        prop_assert!(map.write(CELLS_AT, &vec![fill; CAPACITY as usize]));
        // Where an honest writer would have put lengths.
        let mut at = 0;
        for len in lens {
            prop_assert!(write_around(map, at * CELL as usize, &len.to_ne_bytes()));
            at += cells_of(len.min(LONGEST)) as usize;
        }
        for at in [produced, consumed % (4 * CELLS)] {
            map.word(PRODUCED_AT).store(at, Ordering::Relaxed);
            map.word(CONSUMED_AT).store(consumed, Ordering::Relaxed);
            let (mut count, mut bytes) = (0, 0);
            let taken = reader.take(limit, |len, copy| {
                let mut out = vec![0; len];
                copy(&mut out);
                (count, bytes) = (count + 1, bytes + len);
            });
            if let Ok(taken) = taken {
                prop_assert_eq!(taken, count);
            }
            prop_assert!(count <= limit && bytes <= CAPACITY as usize);
            let _ = reader.sleep();
        }
    }

    /// Whatever a reader writes to its index, the writer stays within the memory.
    #[test]
    fn a_hostile_reader_gains_nothing(consumed: u32, len in 0usize..4100) {
        let (mut writer, _reader) = pair();
        writer.map.word(CONSUMED_AT).store(consumed, Ordering::Relaxed);
        let mut pushed = 0;
        while pushed <= 2 * CELLS && writer.push(&net(len), &vec![1; len]) == Ok(true) {
            pushed += 1;
        }
        prop_assert!(pushed <= CELLS);
    }
}
