//! A billing service of which ten replicas run and one charges. [`charge`] is the work of a leader; everything else is scaffolding.

pub mod charge;
pub mod driver;
pub mod gate;
pub mod ledger;

use std::time::Duration;

use incumbent::{Connection, Settings, blocking, connect_with};

/// The store of the election. Its leases are short, so that the example is over soon: 2 s, or the shortest that the store can keep;
/// `?ttl=` in the URL wins.
///
/// # Errors
/// As [`incumbent::connect`].
pub fn connect(url: &str) -> incumbent::Result<Connection> {
    let open = |ttl| blocking::wait(connect_with(url, Settings { ttl, ..Settings::default() }));
    let connection = open(Duration::from_secs(2))?;
    let shortest = connection.guarantees().ttl_min;
    if connection.settings().ttl < shortest { open(shortest) } else { Ok(connection) }
}
