//! Exit codes: the one table, for the code and for the help.

/// What was asked for is done, or the answer is yes.
pub(crate) const OK: u8 = 0;
/// The answer is no.
pub(crate) const NO: u8 = 1;
/// `run --no-wait`, and another leads, or something of an earlier term cannot be killed.
pub(crate) const ANOTHER_LEADS: u8 = 123;
/// `run --wait-timeout` is over.
pub(crate) const WAITED_TOO_LONG: u8 = 124;
/// What was typed makes no sense.
pub(crate) const USAGE: u8 = 2;
/// An error of incumbent's own.
pub(crate) const FAILED: u8 = 125;
/// The command cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist.
pub(crate) const NOT_FOUND: u8 = 127;

/// The codes of `run`, as the help shows them.
pub(crate) const RUN: &str = "\
Exit codes of run:
  the command's own; 128 + n if signal n ended it
  0    told to stop while no command ran
  2    wrong usage
  123  --no-wait, and another leads, or what an earlier term left here cannot be killed
  124  --wait-timeout is over
  125  an error of incumbent's own
  126  the command cannot be executed
  127  the command does not exist";

/// The codes of all other commands.
pub(crate) const OTHERS: &str = "\
Exit codes of the other commands:
  0    done, or yes
  1    the answer is no
  2    wrong usage
  125  an error";
