//! Replays the corpus through the fuzz bodies, and after it inputs made from the corpus by a fixed seed.

#![expect(clippy::unwrap_used, reason = "in a test a panic is a failure")]

use std::fs;
use std::path::Path;

/// Runs `body` on each file of `corpus/<name>` and on `variants` damaged copies of each.
fn replay(name: &str, variants: u32, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    for (number, path) in paths.iter().enumerate() {
        // The name shows only where the body panics.
        println!("{}", path.display());
        let input = fs::read(path).unwrap();
        body(&input);
        let mut random = XorShift(0x9E37_79B9_7F4A_7C15 ^ (number as u64 + 1));
        for _ in 0..variants {
            body(&random.damaged(&input));
        }
    }
}

struct XorShift(u64);

impl XorShift {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit.max(1)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }

    /// A copy of `input` with one to four changes.
    fn damaged(&mut self, input: &[u8]) -> Vec<u8> {
        let mut copy = input.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(copy.len());
            match self.below(4) {
                0 => copy.truncate(at),
                1 => copy.insert(at, self.byte()),
                _ if copy.is_empty() => {}
                2 => copy[at] = self.byte(),
                _ => copy[at] ^= 1 << self.below(8),
            }
        }
        copy
    }
}

#[test]
fn parse() {
    replay("parse", 2_000, ferroce_fuzz::parse);
}

#[test]
fn two_nics() {
    replay("two_nics", 200, ferroce_fuzz::two_nics);
}
