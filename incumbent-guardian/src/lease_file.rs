//! Lease files on disk: one per term, written by the elector, read by the guardian and by the job.
//!
//! The writer does not map the file: it changes the last 16 bytes with one `pwrite`, so that a full disk is an error it
//! can report and never a `SIGBUS`. Readers may map it all the same, since file and mapping share the page cache.
//! The deadline is written before its complement and read before it, so a reader that meets the writer half-way sees a
//! mismatch and tries again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use incumbent_core::lease_file::{
    DEADLINE_OFFSET, LEN, LeaseWord, READ_ATTEMPTS, Unreadable, encode_deadline,
};
use incumbent_core::{BootInstant, ElectionName, FencingToken};
use rustix::fs::{FlockOperation, flock};

use crate::{leftover, place};

const EXTENSION: &str = "lease";

/// The election in the name of a lease file, or of a file of the same name with another extension.
pub(crate) fn election_of(path: &Path) -> Option<&str> {
    // Token and writer, after it, have no dots.
    path.file_stem()?.to_str()?.rsplitn(3, '.').nth(2)
}

/// The lease file of the same name as a file with another extension.
pub(crate) fn beside(path: &Path) -> PathBuf {
    path.with_extension(EXTENSION)
}

/// Opens what should be a lease file to read it. A pipe in its place keeps nobody waiting, and reads as empty.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Removes the lease files in `dir` whose writers are gone. A living writer holds a `flock` on its file, so neither a
/// reused pid nor another pid namespace can mislead this. Returns how many files were removed.
///
/// # Errors
/// If the folder cannot be listed. A file that cannot be opened or removed is left alone.
pub fn sweep(dir: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        // What the term may have left running is judged by its deadline.
        if leftover::is_linked(&path) {
            continue;
        }
        let Ok(file) = open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && fs::remove_file(&path).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

/// The one writer of a term's lease file. Dropping it ends the term in the file and removes the file.
#[derive(Debug)]
pub struct LeaseFileWriter {
    file: File,
    /// What was made in its place when it had been removed: who opened the first one still reads that.
    again: Option<File>,
    path: PathBuf,
    token: FencingToken,
    over: bool,
}

impl LeaseFileWriter {
    /// Makes the file of a new term in `dir` under a name that no other term has or had, readable by this user only, with
    /// its space allocated.
    ///
    /// # Errors
    /// Any that creating, allocating or writing gives; with a full disk this call fails, and no later one.
    pub fn create(
        dir: &Path,
        election: &ElectionName,
        token: FencingToken,
        deadline: BootInstant,
    ) -> io::Result<LeaseFileWriter> {
        static TERM: AtomicU64 = AtomicU64::new(0);
        loop {
            let name = format!(
                "{election}.{token}.{}-{}-{}.{EXTENSION}",
                std::process::id(),
                crate::clock::now().as_nanos(),
                TERM.fetch_add(1, Ordering::Relaxed)
            );
            let path = dir.join(name);
            let word = LeaseWord::new(token, deadline);
            if let Some(file) = create(&path, word)? {
                return Ok(LeaseFileWriter { file, again: None, path, token, over: false });
            }
        }
    }

    /// Where the file is: what `INCUMBENT_LEASE_FILE` says.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The token of the term.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Moves the deadline. A term that is over stays over: then this does nothing.
    ///
    /// # Errors
    /// If the write fails; the deadline before it then stands, and the job is killed at that.
    pub fn set_deadline(&mut self, deadline: BootInstant) -> io::Result<()> {
        if self.over {
            return Ok(());
        }
        self.over = deadline == BootInstant::ZERO;
        let again = self.again.as_ref().map_or(Ok(()), |file| write_deadline(file, deadline));
        write_deadline(&self.file, deadline).and(again)
    }

    /// Makes the file again with this deadline, if its path names it no longer. Returns whether that was so.
    ///
    /// # Errors
    /// Any that looking, making a folder or the file give. Then whoever looks for the file takes the term for over.
    pub fn restore(&mut self, deadline: BootInstant) -> io::Result<bool> {
        let there = match fs::symlink_metadata(&self.path) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let ours = self.again.as_ref().unwrap_or(&self.file).metadata()?;
        if self.over
            || there.as_ref().is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
        {
            return Ok(false);
        }
        if there.is_some() {
            fs::remove_file(&self.path)?;
        }
        // The folder may have been removed, too, and made by somebody else.
        place::usable(self.path.parent().unwrap_or(&self.path))?;
        let made = create(&self.path, LeaseWord::new(self.token, deadline))?;
        self.again = Some(made.ok_or(io::ErrorKind::NotFound)?);
        Ok(true)
    }

    /// Says that the term is over, for good.
    ///
    /// # Errors
    /// If the write fails. Then the job may believe in the term until the deadline: do not release before that.
    pub fn end(&mut self) -> io::Result<()> {
        self.set_deadline(BootInstant::ZERO)
    }
}

impl Drop for LeaseFileWriter {
    fn drop(&mut self) {
        // Nobody is left to hear of an error: a reader that holds the file open still has the deadline.
        let _ = self.end();
        let _ = fs::remove_file(&self.path);
    }
}

fn write_deadline(file: &File, deadline: BootInstant) -> io::Result<()> {
    file.write_all_at(&encode_deadline(deadline), DEADLINE_OFFSET as u64)
}

/// Makes a lease file. `None` if a sweep of another process met it before it was locked, and it is gone.
fn create(path: &Path, word: LeaseWord) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !locked || file.metadata()?.nlink() == 0 {
        return Ok(None);
    }
    let filled = allocate(&file).and_then(|()| file.write_all_at(&word.encode(), 0));
    if let Err(error) = filled {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(Some(file))
}

/// Makes sure that the file's space is there.
#[cfg(target_os = "linux")]
fn allocate(file: &File) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, LEN as u64) {
        // A file system that cannot allocate ahead: writing the bytes is what posix_fallocate does there, too.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.write_all_at(&[0; LEN], 0),
        other => Ok(other?),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(file: &File) -> io::Result<()> {
    file.write_all_at(&[0; LEN], 0)
}

/// Reads a term's lease file, without mapping it: whatever becomes of the file, this never faults.
#[derive(Debug)]
pub struct LeaseFileReader {
    file: File,
}

impl LeaseFileReader {
    /// Opens the lease file of a term. Its path is never reused, so a missing file is a term that is over.
    ///
    /// # Errors
    /// Any that opening gives.
    pub fn open(path: &Path) -> io::Result<LeaseFileReader> {
        Ok(LeaseFileReader { file: open(path)? })
    }

    /// What the file says now. Tries [`READ_ATTEMPTS`] times while the writer is at work.
    ///
    /// # Errors
    /// [`Unreadable`]: the term is not valid. A file that cannot be read counts as one of the wrong length.
    pub fn read(&self) -> Result<LeaseWord, Unreadable> {
        let mut bytes = [0; LEN + 1];
        for _ in 0..READ_ATTEMPTS {
            let len = rustix::io::retry_on_intr(|| rustix::io::pread(&self.file, &mut bytes[..], 0));
            match LeaseWord::decode(&bytes[..len.unwrap_or(0)]) {
                Err(Unreadable::Mismatch) => {}
                done => return done,
            }
        }
        Err(Unreadable::Mismatch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const TOKEN: FencingToken = FencingToken(17);
    const SOON: BootInstant = BootInstant::from_nanos(1_000);

    fn writer(dir: &Path) -> LeaseFileWriter {
        LeaseFileWriter::create(dir, &"billing".parse().unwrap(), TOKEN, SOON).unwrap()
    }

    #[test]
    fn a_reader_follows_the_writer_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path());
        let reader = LeaseFileReader::open(writer.path()).unwrap();
        assert_eq!(reader.read(), Ok(LeaseWord::new(TOKEN, SOON)));

        let later = BootInstant::from_nanos(u64::MAX - 1);
        writer.set_deadline(later).unwrap();
        assert_eq!(reader.read(), Ok(LeaseWord::new(TOKEN, later)));

        writer.end().unwrap();
        writer.set_deadline(later).unwrap();
        assert_eq!(reader.read(), Ok(LeaseWord::new(TOKEN, BootInstant::ZERO)), "the end is final");

        let path = writer.path().to_owned();
        drop(writer);
        assert!(!path.exists());
        assert_eq!(LeaseFileReader::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!reader.read().unwrap().is_valid(BootInstant::from_nanos(1)));
    }

    #[test]
    fn every_term_has_a_file_of_its_own_that_others_cannot_read() {
        let dir = tempfile::tempdir().unwrap();
        let first = writer(dir.path());
        let second = writer(dir.path());
        assert_ne!(first.path(), second.path());
        let metadata = fs::metadata(first.path()).unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, 32));
    }

    #[test]
    fn the_election_is_in_the_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["billing", "a.b", "a.17.b"] {
            let lease = LeaseFileWriter::create(dir.path(), &name.parse().unwrap(), TOKEN, SOON).unwrap();
            assert_eq!(election_of(lease.path()), Some(name));
            assert_eq!(election_of(&lease.path().with_extension("cgroup")), Some(name));
        }
    }

    /// As by hand, or by what tidies up in `/tmp`.
    #[test]
    fn a_file_that_was_removed_or_replaced_is_made_again_and_followed_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LeaseFileWriter::create(
            &place::lease_dir_in(dir.path()).unwrap(),
            &"billing".parse().unwrap(),
            TOKEN,
            SOON,
        )
        .unwrap();
        let path = writer.path().to_owned();
        let first = LeaseFileReader::open(&path).unwrap();
        assert!(!writer.restore(SOON).unwrap(), "it is there");
        let removals: [&dyn Fn(); 3] = [
            &|| fs::remove_file(&path).unwrap(),
            &|| fs::remove_dir_all(path.parent().unwrap()).unwrap(),
            &|| {
                fs::remove_file(&path).unwrap();
                fs::write(&path, "of somebody else").unwrap();
            },
        ];
        for (round, remove) in removals.iter().enumerate() {
            remove();
            let later = BootInstant::from_nanos(2_000 + round as u64);
            writer.set_deadline(later).unwrap();
            assert!(writer.restore(later).unwrap());
            let again = LeaseFileReader::open(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            for reader in [&first, &again] {
                assert_eq!(reader.read(), Ok(LeaseWord::new(TOKEN, later)));
            }
            assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0, "its writer lives");
        }
        let again = LeaseFileReader::open(&path).unwrap();
        writer.end().unwrap();
        for reader in [&first, &again] {
            assert_eq!(reader.read().unwrap().deadline(), None);
        }
        fs::remove_file(&path).unwrap();
        assert!(!writer.restore(SOON).unwrap() && !path.exists(), "what is over needs no file");
    }

    #[test]
    fn a_truncated_or_overgrown_file_is_invalid_and_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let writer = writer(dir.path());
        let reader = LeaseFileReader::open(writer.path()).unwrap();
        for len in [0, 8, 31, 33] {
            File::options().write(true).open(writer.path()).unwrap().set_len(len).unwrap();
            assert_eq!(reader.read(), Err(Unreadable::Length), "{len} bytes");
        }
    }

    #[test]
    fn a_torn_lease_word_is_invalid() {
        let dir = tempfile::tempdir().unwrap();
        let writer = writer(dir.path());
        let reader = LeaseFileReader::open(writer.path()).unwrap();
        writer.file.write_all_at(&u64::MAX.to_le_bytes(), DEADLINE_OFFSET as u64).unwrap();
        assert_eq!(reader.read(), Err(Unreadable::Mismatch));
    }

    #[test]
    fn readers_never_see_a_deadline_that_was_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path());
        let reader = LeaseFileReader::open(writer.path()).unwrap();
        let done = AtomicBool::new(false);
        // Every byte of these two differs, so any mixture of them is neither.
        let deadlines = [0x1111_1111_1111_1111, 0x2222_2222_2222_2222].map(BootInstant::from_nanos);
        writer.set_deadline(deadlines[0]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..50_000 {
                    writer.set_deadline(deadlines[round % 2]).unwrap();
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                if let Ok(word) = reader.read() {
                    assert!(deadlines.contains(&word.deadline().unwrap()), "{word:?}");
                }
            }
        });
    }

    #[test]
    fn the_sweep_removes_what_dead_writers_left_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let alive = writer(dir.path());
        let dead = dir.path().join("billing.3.1-1-1.lease");
        let other = dir.path().join("something-else");
        fs::write(&dead, LeaseWord::new(FencingToken(3), SOON).encode()).unwrap();
        fs::write(&other, "").unwrap();
        let (linked, pipe) = (dir.path().join("billing.4.1-1-1.lease"), dir.path().join("x.1.1-1-1.lease"));
        fs::copy(&dead, &linked).unwrap();
        leftover::link(&linked, &crate::cgroup::Cgroup::existing(dir.path().into())).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(sweep(dir.path()).unwrap(), 2, "a pipe keeps nobody waiting");
        assert!(alive.path().exists() && other.exists() && linked.exists());
        assert!(!dead.exists() && !pipe.exists());
    }
}
