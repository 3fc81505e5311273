//! The rules on `memory:`.

use std::process::ExitCode;
use std::sync::Arc;

use incumbent::Settings;
use incumbent_conformance::{Harness, Suite};
use incumbent_core::{Backend, BoxFuture, Result};

struct Memory;

impl Harness for Memory {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory("memory:conformance", &settings)?()
        })
    }
}

fn main() -> ExitCode {
    Suite::new(Memory).main()
}
