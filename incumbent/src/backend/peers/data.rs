//! How recent this peer's data is: a number in a file, which whoever keeps the data writes there.

use std::path::Path;
use std::sync::Arc;

use incumbent_core::peers::Criterion;
use incumbent_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc;
use tracing::warn;

use super::config::Config;
use super::node::Input;

/// What the file says now; 0 where none is named.
pub(super) fn read_first(config: &Config) -> Result<u64> {
    match &config.data_version_file {
        Some(path) => read(path),
        None if config.criterion == Criterion::MostRecentData => {
            let text = "criterion=most-recent-data needs data_version_file=, a file with the version of this peer's data as a number";
            Err(config.error(ErrorKind::InvalidConfig, text))
        }
        None => Ok(0),
    }
}

fn read(path: &Path) -> Result<u64> {
    let wrong = |why: String| {
        let text = format!("data_version_file={} {why}; replace it by a rename", path.display());
        Error::new(ErrorKind::InvalidConfig, text)
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    text.trim().parse().map_err(|_| wrong("holds no number from 0 to 2^64-1".to_owned()))
}

/// Tells of each change, about as often as a leader speaks. While the file cannot be read, what it said last stays in force.
pub(super) async fn follow<M>(config: Arc<Config>, mut last: u64, inputs: mpsc::Sender<Input<M>>) {
    let Some(path) = &config.data_version_file else { return };
    let mut failed = false;
    loop {
        tokio::time::sleep(config.timing.heartbeat_interval).await;
        let path = path.clone();
        // A disk that hangs keeps nothing else from going on.
        let Ok(found) = tokio::task::spawn_blocking(move || read(&path)).await else { return };
        match found {
            Ok(version) => {
                failed = false;
                if version != last && inputs.send(Input::Data(version)).await.is_err() {
                    return;
                }
                last = version;
            }
            Err(error) if !failed => {
                failed = true;
                warn!(%error, "the version {last} stays in force");
            }
            Err(_) => {}
        }
    }
}
