//! Everything that comes to a peer from a connection or a disk: `cargo +nightly fuzz run peers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| incumbent::peers::read_anything(bytes));
