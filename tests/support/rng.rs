//! Reproducible random numbers.

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
