//! Jitter and nonces from a seed that is passed in, so that the elector stays a pure function of its inputs.

use crate::ids::Nonce;

/// SplitMix64 over a 128-bit seed. Not for secrets: a nonce must only differ from every other campaign's, which the
/// seed (from the operating system) and the counter give.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(crate) struct Rng {
    seed: u128,
    drawn: u64,
}

impl Rng {
    pub(crate) fn new(seed: u128) -> Rng {
        Rng { seed, drawn: 0 }
    }

    /// A number in 0..1024.
    pub(crate) fn jitter(&mut self) -> u32 {
        self.drawn += 1;
        (mix((self.seed as u64) ^ mix(self.drawn)) % 1024) as u32
    }

    pub(crate) fn nonce(&mut self) -> Nonce {
        self.drawn += 1;
        let step = self.drawn.wrapping_mul(u64::from(u32::MAX));
        let high = mix(((self.seed >> 64) as u64).wrapping_add(step));
        let low = mix((self.seed as u64).wrapping_add(step));
        Nonce(u128::from(high) << 64 | u128::from(low))
    }
}

/// A bijection of 64-bit words.
fn mix(word: u64) -> u64 {
    let z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Rng;

    #[test]
    fn nonces_differ_between_draws_and_between_seeds() {
        // Seeds that differ in one bit only, in either half.
        let seeds = [0, 1, 1 << 63, 1 << 64, 1 << 127, u128::MAX, 0x5eed];
        let mut nonces = BTreeSet::new();
        for seed in seeds {
            let mut rng = Rng::new(seed);
            for _ in 0..10_000 {
                assert!(nonces.insert(rng.nonce()), "seed {seed:x}");
            }
        }
    }

    #[test]
    fn a_long_life_does_not_wear_it_out() {
        let mut rng = Rng { seed: 1, drawn: u64::from(u32::MAX) * 3 };
        assert_ne!(rng.nonce(), rng.nonce());
        assert!(rng.jitter() < 1024);
    }

    #[test]
    fn jitter_fills_its_range() {
        let mut rng = Rng::new(7);
        let drawn: BTreeSet<u32> = (0..100_000).map(|_| rng.jitter()).collect();
        assert_eq!((drawn.len(), drawn.first(), drawn.last()), (1024, Some(&0), Some(&1023)));
    }
}
