//! Where the driver may strike: a worker says where it stands and waits for the word to go on. Alone, it just goes on.

use std::fmt;
use std::io::{self, BufRead, Write};

/// A worker's line to the driver.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Whether there is a driver.
    pub driven: bool,
}

impl Gate {
    /// Says something.
    pub fn say(&self, what: fmt::Arguments<'_>) {
        let mut out = io::stdout().lock();
        // Nobody is there to read it once the driver is gone; the next `pass` notices.
        let _ = writeln!(out, "{what}").and_then(|()| out.flush());
    }

    /// Says where it stands, and stands there until the driver answers.
    pub fn pass(&self, place: fmt::Arguments<'_>) {
        if self.driven {
            self.say(place);
            let mut answer = String::new();
            if io::stdin().lock().read_line(&mut answer).unwrap_or(0) == 0 {
                std::process::exit(1);
            }
        }
    }
}
