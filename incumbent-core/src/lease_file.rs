//! The lease file: 32 bytes in which a job, in any language, sees whether its term is still good.
//!
//! | offset | what |
//! | --- | --- |
//! | 0 | `INCLEASE` in ASCII |
//! | 8 | fencing token, u64 |
//! | 16 | deadline: nanoseconds on the boot clock, u64; 0 is *over*, and final |
//! | 24 | bitwise complement of the deadline, u64 |
//!
//! All numbers are little-endian. The term is good only if the complement matches **and** the boot clock stands
//! before the deadline. A mismatch means that the reader met the writer half-way: read again, and after
//! [`READ_ATTEMPTS`] mismatches take the term for lost. The file has meaning only under the kernel (and the time
//! namespace) in which it was written.

use std::fmt;
use std::time::Duration;

use crate::{BootInstant, FencingToken};

/// Length of a lease file in bytes.
pub const LEN: usize = 32;
/// The first eight bytes of a lease file.
pub const MAGIC: [u8; 8] = *b"INCLEASE";
/// Where the deadline begins; its complement follows it directly, up to the end of the file.
pub const DEADLINE_OFFSET: usize = 16;
/// How often a reader tries before it takes a mismatch for an invalid term.
pub const READ_ATTEMPTS: usize = 100;

/// What a lease file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseWord {
    token: FencingToken,
    deadline: BootInstant,
}

impl LeaseWord {
    /// A term with this token that is good until `deadline`; [`BootInstant::ZERO`] says that it is over.
    /// An authority that issues no tokens writes token 0.
    pub const fn new(token: FencingToken, deadline: BootInstant) -> LeaseWord {
        LeaseWord { token, deadline }
    }

    /// The fencing token of the term; 0 if its authority issues none.
    pub const fn token(self) -> FencingToken {
        self.token
    }

    /// Until when the term is good, `None` once it is over.
    pub fn deadline(self) -> Option<BootInstant> {
        (self.deadline != BootInstant::ZERO).then_some(self.deadline)
    }

    /// Whether the term is good at `now`. The deadline itself is already too late.
    pub fn is_valid(self, now: BootInstant) -> bool {
        now < self.deadline
    }

    /// How long the term is good from `now` if nobody renews it; zero once it is over.
    pub const fn remaining(self, now: BootInstant) -> Duration {
        self.deadline.since(now)
    }

    /// The file's 32 bytes.
    pub fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.token.0.to_le_bytes());
        bytes[DEADLINE_OFFSET..].copy_from_slice(&encode_deadline(self.deadline));
        bytes
    }

    /// What the file's bytes say.
    ///
    /// # Errors
    /// [`Unreadable`] if the file is not exactly [`LEN`] bytes long, does not begin with [`MAGIC`], or if the deadline and
    /// its complement differ. None of them is a valid term.
    pub fn decode(bytes: &[u8]) -> Result<LeaseWord, Unreadable> {
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| Unreadable::Length)?;
        if bytes[..8] != MAGIC {
            return Err(Unreadable::Magic);
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let deadline = word(DEADLINE_OFFSET);
        if deadline != !word(DEADLINE_OFFSET + 8) {
            return Err(Unreadable::Mismatch);
        }
        Ok(LeaseWord::new(FencingToken(word(8)), BootInstant::from_nanos(deadline)))
    }
}

/// The last 16 bytes of the file: the deadline and its complement, the only part that ever changes.
pub fn encode_deadline(deadline: BootInstant) -> [u8; 16] {
    let deadline = deadline.as_nanos();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&deadline.to_le_bytes());
    bytes[8..].copy_from_slice(&(!deadline).to_le_bytes());
    bytes
}

/// Why bytes are no lease file. Only [`Unreadable::Mismatch`] may pass by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Not 32 bytes: truncated, still being made, or another file.
    Length,
    /// Does not begin with `INCLEASE`.
    Magic,
    /// The deadline and its complement differ: the writer is at work, or the file is damaged.
    Mismatch,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unreadable::Length => "the lease file is not 32 bytes long",
            Unreadable::Magic => "the file does not begin with INCLEASE: it is no lease file",
            Unreadable::Mismatch => "the lease file's deadline and its complement differ",
        })
    }
}

impl std::error::Error for Unreadable {}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: LeaseWord = LeaseWord::new(FencingToken(0x0102_0304), BootInstant::from_nanos(5_000_000_001));

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = WORD.encode();
        assert_eq!(&bytes[..8], b"INCLEASE");
        assert_eq!(&bytes[8..16], [4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(&bytes[16..24], 5_000_000_001_u64.to_le_bytes());
        assert_eq!(&bytes[24..], (u64::MAX - 5_000_000_001).to_le_bytes());
        assert_eq!(LeaseWord::decode(&bytes), Ok(WORD));
    }

    #[test]
    fn a_term_is_good_before_its_deadline_only() {
        let at = BootInstant::from_nanos;
        assert!(WORD.is_valid(at(5_000_000_000)));
        assert!(!WORD.is_valid(at(5_000_000_001)));
        assert!(!WORD.is_valid(BootInstant::FAR_FUTURE));
        assert_eq!(WORD.remaining(at(4_000_000_001)), Duration::from_secs(1));
        assert_eq!(WORD.remaining(at(6_000_000_000)), Duration::ZERO);
    }

    #[test]
    fn zero_is_over_at_every_moment() {
        let over = LeaseWord::new(FencingToken(7), BootInstant::ZERO);
        assert_eq!(LeaseWord::decode(&over.encode()), Ok(over));
        assert_eq!(over.deadline(), None);
        assert!(!over.is_valid(BootInstant::ZERO));
        assert!(!over.is_valid(BootInstant::from_nanos(1)));
    }

    #[test]
    fn every_single_damaged_bit_of_the_deadline_is_noticed() {
        for bit in DEADLINE_OFFSET * 8..LEN * 8 {
            let mut bytes = WORD.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LeaseWord::decode(&bytes), Err(Unreadable::Mismatch), "bit {bit}");
        }
    }

    #[test]
    fn bytes_that_are_no_lease_file_are_refused() {
        assert_eq!(LeaseWord::decode(&[]), Err(Unreadable::Length));
        assert_eq!(LeaseWord::decode(&WORD.encode()[..31]), Err(Unreadable::Length));
        assert_eq!(LeaseWord::decode(&[0; 33]), Err(Unreadable::Length));
        assert_eq!(LeaseWord::decode(&[0; LEN]), Err(Unreadable::Magic));
    }

    #[test]
    fn the_changing_part_is_the_end_of_the_whole() {
        let deadline = BootInstant::from_nanos(42);
        assert_eq!(LeaseWord::new(FencingToken(1), deadline).encode()[16..], encode_deadline(deadline));
    }
}
