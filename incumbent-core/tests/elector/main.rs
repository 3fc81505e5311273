//! The elector, driven by hand: scenario scripts with expected traces, and random inputs against invariants.

mod cycles;
mod invariants;
mod properties;
mod script;
mod scripts;
