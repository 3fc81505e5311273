//! News of the state directory, for all elections of a connection at once.
//!
//! On Linux one inotify instance tells. Where there is none, or the limit of instances is reached, everyone looks every
//! 50 ms.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use incumbent_core::time::exact;
use tracing::warn;

use crate::backend::signals::Signals;

/// How often everyone looks where nothing tells.
const POLL: Duration = Duration::from_millis(50);

/// Tells `signals` of what happens in `dir`, for ever.
pub(super) async fn follow(dir: PathBuf, signals: Arc<Signals>) {
    let mut told = false;
    loop {
        if let Err(error) = until_gap(&dir, &signals).await
            // It comes with the first campaign.
            && error.kind() != std::io::ErrorKind::NotFound
            && !std::mem::replace(&mut told, true)
        {
            warn!(%error, dir = %dir.display(), "no news of changes; looking every {}", exact(POLL));
        }
        signals.send_all();
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(target_os = "linux")]
use linux::until_gap;

#[cfg(not(target_os = "linux"))]
async fn until_gap(_dir: &std::path::Path, _signals: &Signals) -> std::io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::mem::MaybeUninit;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::fd::OwnedFd;
    use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, WatchFlags};
    use rustix::io::Errno;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use crate::backend::file::format::Named;
    use crate::backend::signals::Signals;

    /// When to look again after a process has died: the kernel tells of the close an instant before it drops the lock.
    const AGAIN: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(25)];

    /// Passes events on until some may have been lost: the directory was removed or moved.
    pub(super) async fn until_gap(dir: &Path, signals: &Arc<Signals>) -> io::Result<()> {
        let dir = dir.to_owned();
        let subscribed = tokio::task::spawn_blocking(move || subscribe(&dir));
        let inotify = register(subscribed.await??)?;
        // What happened before.
        signals.send_all();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        loop {
            let mut ready = inotify.readable().await?;
            let mut reader = inotify::Reader::new(inotify.get_ref(), &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        if !pass_on(&event, signals) {
                            return Ok(());
                        }
                    }
                    Err(Errno::WOULDBLOCK) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            ready.clear_ready();
        }
    }

    #[expect(
        unsafe_code,
        reason = "tokio has no other way to wait for a descriptor of a kind it does not know"
    )]
    fn register(inotify: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
        // SAFETY: the descriptor is open, and it is neither closed nor replaced while the AsyncFd owns it.
        Ok(unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE)? })
    }

    fn subscribe(dir: &Path) -> io::Result<OwnedFd> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        // A record is renamed into its place, but the first one is linked there.
        let files = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE;
        let folder = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, dir, files | folder)?;
        Ok(inotify)
    }

    /// False if this was the last event to be trusted.
    fn pass_on(event: &Event<'_>, signals: &Arc<Signals>) -> bool {
        let what = event.events();
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            signals.send_all();
            return true;
        }
        let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        if what.intersects(gone) {
            return false;
        }
        match event.file_name().and_then(|name| name.to_str().ok()).and_then(Named::parse) {
            Some(Named::Record(election)) => signals.send(election),
            // Who comes changes nothing yet.
            Some(Named::Alive(..)) if what.contains(ReadFlags::CREATE) => {}
            Some(Named::Alive(election, _)) => {
                signals.send(election);
                for pause in AGAIN {
                    let (signals, election) = (signals.clone(), election.to_owned());
                    tokio::spawn(async move {
                        tokio::time::sleep(pause).await;
                        signals.send(&election);
                    });
                }
            }
            Some(Named::New) | None => {}
        }
        true
    }
}
