//! The one error type of the testkit: a sentence for people.

use std::fmt;

/// What could not be done, in words. `Debug` prints the same words, so that `unwrap` in a test reads well.
pub struct Error(String);

/// A result of the testkit.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that says `message`.
    pub fn new(message: impl Into<String>) -> Error {
        Error(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Why a server did not start: only a taken port is worth another try.
#[derive(Debug)]
pub(crate) enum StartError {
    PortTaken,
    Other(Error),
}

impl From<Error> for StartError {
    fn from(error: Error) -> StartError {
        StartError::Other(error)
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Error {
        match error {
            StartError::PortTaken => Error::new("each port that was tried was taken by someone else"),
            StartError::Other(error) => error,
        }
    }
}
