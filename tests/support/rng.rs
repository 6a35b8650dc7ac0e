//! Reproducible random numbers, and inputs with random mutations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// `xorshift64*`, with its state; never 0.
pub struct Rng(pub u64);

impl Rng {
    /// Returns the next number, less than `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

pub fn below(chance: &mut Rng, limit: usize) -> usize {
    usize::try_from(chance.below(limit.max(1) as u64)).unwrap()
}

/// Mutates one input in a few places. `pieces`, with `¦` between them, are likely to break a parser.
fn mutated(chance: &mut Rng, corpus: &[Vec<u8>], pieces: &str) -> Vec<u8> {
    let pieces: Vec<&str> = pieces.split('¦').collect();
    let mut bytes = corpus[below(chance, corpus.len())].clone();
    for _ in 0..=below(chance, 9) {
        let (at, more) = (below(chance, bytes.len()), below(chance, 50));
        let end = (at + more).min(bytes.len());
        match below(chance, 7) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes[at..]
                .iter_mut()
                .take(1)
                .for_each(|byte| *byte ^= 1 << (more % 8)),
            2 => {
                let piece = pieces[below(chance, pieces.len())].repeat(1 + below(chance, 3));
                drop(bytes.splice(at..at, piece.into_bytes()));
            }
            3 => bytes.extend_from_within(at..end),
            4 => bytes.truncate(at),
            5 => {
                let copy = bytes[at..end].to_vec();
                let to = below(chance, bytes.len());
                drop(bytes.splice(to..to, copy));
            }
            _ => {
                let other = &corpus[below(chance, corpus.len())];
                let from = below(chance, other.len());
                drop(bytes.splice(at..end, other[from..].iter().copied()));
            }
        }
    }
    bytes
}

/// Mutates inputs and reads them for two seconds, or `BANTAM_FUZZ_SECONDS`. Reports the input of a panic.
/// `BANTAM_FUZZ_SEED` repeats an earlier run.
pub fn fuzz(corpus: &[Vec<u8>], pieces: &str, mut read: impl FnMut(&[u8], &mut Rng)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("BANTAM_FUZZ_SEED").unwrap_or(0x5eed_u64) | 1;
    let until = Instant::now() + Duration::from_secs(number("BANTAM_FUZZ_SECONDS").unwrap_or(2));
    let (mut chance, mut runs) = (Rng(seed), 0_u64);
    while runs < 100 || Instant::now() < until {
        let state = chance.0;
        let bytes = mutated(&mut chance, corpus, pieces);
        let done = catch_unwind(AssertUnwindSafe(|| read(&bytes, &mut chance)));
        assert!(done.is_ok(), "state {state:#x}: {}", bytes.escape_ascii());
        runs += 1;
    }
    println!("{runs} runs from seed {seed:#x}");
}
