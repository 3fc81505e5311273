//! The one source of chance: a seed, and numbers that follow from it.

/// SplitMix64. Whatever happens in a run is drawn from one of these, so a seed is all that a failure needs.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(mix(seed ^ 0x6a09_e667_f3bc_c908))
    }

    /// Another sequence, which depends on this one's next number only.
    pub fn fork(&mut self) -> Random {
        Random(self.word())
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..bound`; 0 if the bound is.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True so many times in a thousand.
    pub fn per_mille(&mut self, chance: u32) -> bool {
        chance > 0 && self.below(1000) < u64::from(chance)
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A seed for a state machine.
    pub fn seed(&mut self) -> u128 {
        u128::from(self.word()) << 64 | u128::from(self.word())
    }
}

/// A bijection of 64-bit words in which each bit of the input changes half of the output.
pub(crate) fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_numbers_and_another_gives_others() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.word()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn numbers_fill_their_range() {
        let mut random = Random::new(7);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
            assert!((3..=5).contains(&random.between(3, 5)));
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!((random.below(0), random.below(1)), (0, 0));
    }
}
