//! The rules on `file:`, with the faults that an operator can make in the directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use incumbent::Settings;
use incumbent_conformance::{Harness, Hook, Suite};
use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Error, ErrorKind, Result};

struct Directory {
    dir: PathBuf,
    copy: PathBuf,
    frozen: Mutex<Vec<File>>,
}

impl Directory {
    fn record(&self, election: &ElectionName) -> PathBuf {
        self.dir.join(format!("{election}.record"))
    }
}

fn done(result: io::Result<()>) -> Hook<'static> {
    let result = result.map_err(|error| Error::new(ErrorKind::Internal, "by hand").with_source(error));
    Ok(Box::pin(std::future::ready(result)))
}

/// Writes `bytes` as an editor does that keeps the file: not in one step.
fn overwrite(path: &Path, change: impl FnOnce(String) -> String) -> io::Result<()> {
    let text = change(fs::read_to_string(path)?);
    fs::write(path, text)
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

impl Harness for Directory {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            incumbent::backend::factory(&format!("file:{}", self.dir.display()), &settings)?()
        })
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        done(fs::remove_file(self.record(election)))
    }

    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        done(overwrite(&self.record(election), |_| "somebody's note to himself\n".to_owned()))
    }

    fn delete_place<'a>(&'a self, claim: &'a Claim) -> Hook<'a> {
        done(fs::remove_file(self.dir.join(format!("{}.{}.alive", claim.election, claim.nonce))))
    }

    fn end_session<'a>(&'a self, _election: &'a ElectionName) -> Hook<'a> {
        Err("a record store has no sessions")
    }

    fn restart(&self) -> Hook<'_> {
        Err("files have no server to restart")
    }

    fn back_up(&self, put_back: bool) -> Hook<'_> {
        done(match put_back {
            false => copy_all(&self.dir, &self.copy),
            true => copy_all(&self.copy, &self.dir),
        })
    }

    /// A process is frozen inside a commit of each election.
    fn stall(&self, on: bool) -> Hook<'_> {
        let mut frozen = self.frozen.lock().expect("an unbroken lock");
        frozen.clear();
        if !on {
            return done(Ok(()));
        }
        let mut lock_all = || {
            for entry in fs::read_dir(&self.dir)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "lock") {
                    let lock = File::open(path)?;
                    lock.lock()?;
                    frozen.push(lock);
                }
            }
            Ok(())
        };
        done(lock_all())
    }

    fn step_wall_clock(&self, _seconds: i64) -> Hook<'_> {
        Err("done in a process with a wall clock of its own, by the test wall_clock")
    }

    fn hold_answers(&self, _on: bool) -> Hook<'_> {
        Err("the answer of a file has no way on which to be held")
    }

    fn objects(&self) -> Hook<'_, u64> {
        let count = fs::read_dir(&self.dir).map(|entries| entries.count() as u64);
        let count = count.map_err(|error| Error::new(ErrorKind::Internal, "by hand").with_source(error));
        Ok(Box::pin(std::future::ready(count)))
    }

    /// The record, and the file under whose lock it is replaced.
    fn kept(&self) -> u64 {
        2
    }
}

fn main() -> ExitCode {
    let root = testkit::run_dir("conformance");
    let (dir, copy) = (root.join("state"), root.join("copy"));
    fs::create_dir_all(&copy).expect("a directory for the copy");
    let exit = Suite::new(Directory { dir, copy, frozen: Mutex::default() }).main();
    let _ = fs::remove_dir_all(root);
    exit
}
