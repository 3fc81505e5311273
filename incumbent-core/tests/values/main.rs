//! Names, numbers, stored formats and formulas: what is refused, with which words, and what comes out.

mod checkpoint;
mod fence;
mod handover;
mod ids;
mod peer_timing;
mod record;
mod timing;

use incumbent_core::Stored;

/// What a store hands back, with a token beside it.
fn stored(token: u64, body: impl Into<Vec<u8>>) -> Stored {
    Stored { version: 1, token, body: body.into() }
}
