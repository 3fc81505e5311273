//! A billing service of which ten replicas run and one charges. [`charge`] is the work of a leader; everything else is scaffolding.

pub mod charge;
pub mod driver;
pub mod gate;
pub mod ledger;

use std::time::Duration;

use incumbent::{Connection, Settings, blocking, connect_with};

/// The store of the election. Its leases are short, so that the example is over soon; `?ttl=` in the URL wins.
///
/// # Errors
/// As [`incumbent::connect`].
pub fn connect(url: &str) -> incumbent::Result<Connection> {
    blocking::wait(connect_with(url, Settings { ttl: Duration::from_secs(2), ..Settings::default() }))
}
