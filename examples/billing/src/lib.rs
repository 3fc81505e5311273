//! A billing service of which ten replicas run and one charges. [`charge`] is the work of a leader; everything else is scaffolding.

pub mod charge;
pub mod driver;
pub mod gate;
pub mod ledger;
