//! The rules on etcd.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Suite};
use incumbent_core::{Backend, BoxFuture, Result};
use testkit::{Etcd, Version};

struct Single {
    etcd: Etcd,
}

impl Harness for Single {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&self.etcd.url(), &settings)?()
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }
}

fn main() -> ExitCode {
    Suite::new(Single { etcd: Etcd::single(Version::V3_5).start().expect("etcd starts") }).main()
}
