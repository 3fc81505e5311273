//! R6 on `memory:` and `file:`.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::run_dir;

fn main() -> ExitCode {
    machine::main_on(|| {
        let dir = run_dir("wall-clock").join("state");
        [
            ("memory", "memory:wall-clock".to_owned(), Duration::from_secs(1)),
            ("file", format!("file:{}", dir.display()), Duration::from_secs(1)),
        ]
    })
}
