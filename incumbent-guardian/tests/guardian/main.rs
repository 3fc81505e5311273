//! The guardian under real signals: every test runs a parent process that it can kill, freeze and wake.
//!
//! This binary is the test harness, the parent process and the guardian program, whichever its first argument says.
#![cfg_attr(target_os = "linux", expect(clippy::unwrap_used, reason = "a test fails by panicking"))]

#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod frozen;
#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "the tests that need root use the rest")]
mod harness;
#[cfg(target_os = "linux")]
mod orders;
#[cfg(target_os = "linux")]
mod parent;
#[cfg(target_os = "linux")]
mod tree;

use std::process::ExitCode;

/// A test named like its function.
#[cfg(target_os = "linux")]
macro_rules! test {
    ($function:ident) => {
        libtest_mimic::Trial::test(stringify!($function), || {
            $function();
            Ok(())
        })
    };
}
#[cfg(target_os = "linux")]
pub(crate) use test;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(role) if role == incumbent_guardian::SUBCOMMAND => {
            return incumbent_guardian::guardian_main(args);
        }
        Some(role) if role == parent::ROLE => return parent::main(args),
        _ => {}
    }
    let mut tests = orders::tests();
    tests.extend(faults::tests());
    tests.extend(frozen::tests());
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), tests).exit_code()
}

/// Freezing, session and descriptor tests read `/proc`.
#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
