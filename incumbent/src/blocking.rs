//! For plain threads: the same elections, without `async`.
//!
//! The types are those of the crate; what waits has a counterpart here, and [`wait`] waits for everything else. No runtime is
//! needed, and none is started but the elector's own.
//!
//! ```
//! use incumbent::{Leadership, Result, blocking};
//!
//! fn charge(leadership: &Leadership) -> Result<u32> {
//!     let checkpoint = leadership.checkpoint();
//!     let mut charged = blocking::wait(checkpoint.get())?.map_or(0, |value| value.len() as u32);
//!     while charged < 3 && leadership.is_stopping().is_none() {
//!         leadership.check()?; // before each critical step
//!         charged += 1;
//!     }
//!     Ok(charged)
//! }
//!
//! # fn main() -> Result<()> {
//! let election = blocking::connect("memory:")?.election("billing");
//! let charged = blocking::run(election.candidate("pod-7"), |leadership| charge(&leadership))?;
//! assert_eq!(charged?, 3);
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use incumbent_core::{Error, ErrorKind, Input, LossReason, Result, StopReason};
use tokio::sync::mpsc::UnboundedSender;
use tracing::info_span;

use crate::campaign::CampaignEvent;
use crate::candidate::{Candidate, log};
use crate::connection::Connection;
use crate::leadership::Leadership;

/// [`incumbent::connect`](crate::connect) for a plain thread.
///
/// # Errors
/// As [`incumbent::connect`](crate::connect).
pub fn connect(url: &str) -> Result<Connection> {
    wait(crate::connect(url))
}

/// Waits on this thread for any future of this crate, as in `wait(leadership.checkpoint().get())`.
pub fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// [`Candidate::run`] for a plain thread: calls `work` on this thread whenever `candidate` leads, and returns its output when it
/// completes.
///
/// A thread cannot be stopped from outside, so `work` looks for itself: [`Leadership::is_stopping`] says that it shall finish what is
/// under way and return, [`Leadership::check`] that the term is over. The output of work that returns after either is
/// dropped, and the candidate campaigns again. Until `work` has returned, nothing is released: its lease runs out.
///
/// # Errors
/// As [`Candidate::run`].
pub fn run<T>(candidate: Candidate, work: impl FnMut(Leadership) -> T) -> Result<T> {
    match run_until(candidate, &Shutdown::new(), work)? {
        Some(output) => Ok(output),
        None => Err(Error::new(ErrorKind::Internal, "the elector's thread has died")),
    }
}

/// [`Candidate::run_until`] for a plain thread: as [`run`], until `shutdown` begins. Returns `None` if the work did not complete by
/// then.
///
/// # Errors
/// As [`Candidate::run_until`].
pub fn run_until<T>(
    candidate: Candidate,
    shutdown: &Shutdown,
    mut work: impl FnMut(Leadership) -> T,
) -> Result<Option<T>> {
    let (election, id) = candidate.names();
    let mut campaign = candidate.campaign()?;
    shutdown.tell(campaign.inputs.clone());
    loop {
        let leadership = match wait(campaign.next()) {
            None | Some(CampaignEvent::Ended) => return Ok(None),
            // What runs out by itself needs no one to wait for it.
            Some(CampaignEvent::Lost(LossReason::DrainOverran(StopReason::Shutdown))) => return Ok(None),
            Some(CampaignEvent::Elected(leadership)) => leadership,
            Some(event) => {
                log(&event);
                continue;
            }
        };
        let _term = info_span!("term", %election, %id, token = ?leadership.token()).entered();
        let output = work(leadership.clone());
        let told = leadership.is_stopping().map(|stopping| stopping.reason);
        let completed = leadership.is_valid() && matches!(told, None | Some(StopReason::Shutdown));
        if completed {
            campaign.stop(StopReason::Shutdown);
        }
        campaign.work_stopped();
        if completed {
            while let Some(event) = wait(campaign.next()) {
                log(&event);
            }
            return Ok(Some(output));
        }
    }
}

/// Tells candidates on other threads to go. Cheap to clone; may be used from any thread, a signal's say.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    begun: bool,
    campaigns: Vec<UnboundedSender<Input>>,
}

impl Shutdown {
    /// One that has not begun.
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// Begins the shutdown: work that runs is [told to stop](Leadership::is_stopping), may drain, and the grant is
    /// released. Returns at once; it is final.
    pub fn begin(&self) {
        let mut told = self.lock();
        told.begun = true;
        for campaign in told.campaigns.drain(..) {
            let _ = campaign.send(Input::Stop(StopReason::Shutdown));
        }
    }

    fn tell(&self, campaign: UnboundedSender<Input>) {
        let mut told = self.lock();
        told.campaigns.retain(|campaign| !campaign.is_closed());
        if told.begun {
            let _ = campaign.send(Input::Stop(StopReason::Shutdown));
        } else {
            told.campaigns.push(campaign);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
