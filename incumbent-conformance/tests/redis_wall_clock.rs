//! R6 on Redis: the candidates' wall clock. The server itself does not run under libfaketime; that its clock takes no part in
//! expiry is seen by the records, which have no time to live.

mod machine;

use std::process::ExitCode;
use std::time::Duration;

use testkit::Redis;

fn main() -> ExitCode {
    let mut redis = None;
    machine::main_on(|| {
        let redis = redis.insert(Redis::single().start().expect("redis starts"));
        [("redis", redis.url(), Duration::from_secs(1))]
    })
}
