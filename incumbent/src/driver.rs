//! The driver: does what one elector says, on the elector's thread. It decides nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use incumbent_core::{
    Answer, Backend, BootInstant, Call, CallId, Claim, Elector, Event, HandoverRequest, Input, Nonce, Note,
    Output, StopReason,
};
use tokio::sync::mpsc;
use tracing::warn;

use crate::campaign::CampaignEvent;
use crate::clock;
use crate::leadership::Leadership;
use crate::thread::Handle;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How long after a gap in the hints the watch is tried again.
const WATCH_PAUSE: Duration = Duration::from_millis(200);

/// What the driver of one candidate needs.
pub(crate) struct Driver {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) handle: Handle,
    pub(crate) elector: Elector,
    pub(crate) liveness: Option<Duration>,
    pub(crate) inputs: (mpsc::UnboundedSender<Input>, mpsc::UnboundedReceiver<Input>),
    pub(crate) events: mpsc::UnboundedSender<CampaignEvent>,
}

/// What is under way for the elector.
#[derive(Default)]
struct Running {
    call: Option<(CallId, BoxFuture<Answer>)>,
    watch: Option<(Nonce, BoxFuture<()>)>,
    term: Option<Leadership>,
    ended: bool,
}

impl Driver {
    /// Drives the elector until it has ended.
    pub(crate) async fn run(mut self) {
        let (hint, mut hints) = mpsc::channel(1);
        let mut running = Running::default();
        self.elector.handle_timeout(clock::now());
        loop {
            self.take_outputs(&mut running, &mut hints);
            if running.ended {
                return;
            }
            self.follow_hints(&mut running, &hint);
            let due = self.due(&running);
            let input = tokio::select! {
                biased;
                Some(input) = self.inputs.1.recv() => Some(input),
                answer = poll_slot(&mut running.call) => Some(answer),
                Some(()) = hints.recv() => Some(Input::Look),
                () = poll_watch(&mut running.watch) => None,
                () = sleep_until(due) => self.stalled(&running),
            };
            let now = clock::now();
            match input {
                Some(input) => self.elector.handle_input(now, input),
                None => self.elector.handle_timeout(now),
            }
        }
    }

    fn take_outputs(&mut self, running: &mut Running, hints: &mut mpsc::Receiver<()>) {
        while let Some(output) = self.elector.poll_output() {
            match output {
                Output::Call(id, call) => {
                    if matches!(call, Call::Acquire(_)) {
                        // It looks for itself at whatever was hinted at before.
                        let _ = hints.try_recv();
                    }
                    running.call = Some((id, answer_to(self.backend.clone(), call, id)))
                }
                Output::Cancel(id) => {
                    running.call.take_if(|(running, _)| *running == id);
                }
                Output::Event(event) => self.tell(running, event),
            }
        }
    }

    fn tell(&mut self, running: &mut Running, event: Event) {
        let event = match event {
            Event::Elected(grant, deadline) => {
                let Some(claim) = self.elector.claim() else { return };
                let term =
                    Leadership::new(claim, &grant, deadline, self.handle.clone(), self.inputs.0.clone());
                running.term = Some(term.clone());
                CampaignEvent::Elected(term)
            }
            Event::Extended(deadline) => {
                if running.term.as_ref().is_some_and(|term| !term.extend(deadline)) {
                    self.elector.handle_input(clock::now(), Input::Expired);
                }
                return;
            }
            Event::Stopping { reason, until } => {
                if let Some(term) = &running.term {
                    term.tell_stopping(reason.clone(), until);
                }
                CampaignEvent::Stopping { reason, until }
            }
            Event::Lost(reason) => {
                if let Some(term) = running.term.take() {
                    term.end(reason.clone());
                }
                CampaignEvent::Lost(reason)
            }
            Event::LeaderChanged(leader) => CampaignEvent::LeaderChanged(leader),
            Event::SameId(leader) => CampaignEvent::SameId(leader),
            Event::Trouble(error) => CampaignEvent::Trouble(error),
            Event::HandoverIgnored(error) => {
                let election = &self.elector.config().election;
                warn!(%election, %error, "a request to hand over is ignored");
                return;
            }
            Event::Recovered => CampaignEvent::Recovered,
            Event::Released { campaigning_at } => CampaignEvent::Released { campaigning_at },
            Event::Ended => {
                running.ended = true;
                CampaignEvent::Ended
            }
        };
        // Nobody listens any more once the campaign was dropped.
        let _ = self.events.send(event);
    }

    /// One subscription per campaign.
    fn follow_hints(&self, running: &mut Running, hint: &mpsc::Sender<()>) {
        let Some(claim) = self.elector.claim() else {
            running.watch = None;
            return;
        };
        if running.watch.as_ref().is_none_or(|(nonce, _)| *nonce != claim.nonce) {
            let watch = forward_hints(self.backend.clone(), claim.clone(), hint.clone());
            running.watch = Some((claim.nonce, Box::pin(watch)));
        }
    }

    fn due(&self, running: &Running) -> Option<BootInstant> {
        let alive_by = match (&running.term, self.liveness) {
            (Some(term), Some(limit)) if term.is_stopping().is_none() => Some(term.silent_since() + limit),
            _ => None,
        };
        match (self.elector.poll_timeout(), alive_by) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    fn stalled(&self, running: &Running) -> Option<Input> {
        let term = running.term.as_ref()?;
        let silent = clock::now().since(term.silent_since());
        (term.is_stopping().is_none() && self.liveness.is_some_and(|limit| silent >= limit))
            .then_some(Input::Stop(StopReason::Stalled))
    }
}

impl Drop for Driver {
    /// The thread goes down with a term under way: whoever holds it must not believe in it any longer than its deadline, which it
    /// knows; nothing is left to do but to say that nobody campaigns any more.
    fn drop(&mut self) {
        let _ = self.events.send(CampaignEvent::Ended);
    }
}

fn answer_to(backend: Arc<dyn Backend>, call: Call, _id: CallId) -> BoxFuture<Answer> {
    Box::pin(async move {
        match call {
            Call::Acquire(claim) => Answer::Acquire(backend.try_acquire(&claim).await),
            Call::Renew(claim, grant) => Answer::Renew(backend.renew(&claim, &grant).await),
            Call::Release(claim, grant, next) => {
                Answer::Release(backend.release(&claim, grant.as_ref(), next.as_ref()).await)
            }
            Call::ReadHandover(election) => {
                let stored = backend.read_note(&election, Note::Handover).await;
                Answer::ReadHandover(
                    stored.and_then(|stored| stored.as_ref().map_or(Ok(None), HandoverRequest::decode)),
                )
            }
        }
    })
}

/// Turns the backend's stream into hints of which any number count as one; subscribes again after a gap.
async fn forward_hints(backend: Arc<dyn Backend>, claim: Claim, hint: mpsc::Sender<()>) {
    loop {
        let Some(mut changes) = backend.watch(&claim.election, Some(&claim)) else {
            return std::future::pending().await;
        };
        while let Some(Ok(())) = changes.next().await {
            let _ = hint.try_send(());
        }
        drop(changes);
        tokio::time::sleep(WATCH_PAUSE).await;
        let _ = hint.try_send(());
    }
}

async fn poll_slot(slot: &mut Option<(CallId, BoxFuture<Answer>)>) -> Input {
    match slot {
        Some((id, call)) => {
            let answer = call.await;
            let id = *id;
            *slot = None;
            Input::Answer(id, answer)
        }
        None => std::future::pending().await,
    }
}

async fn poll_watch(slot: &mut Option<(Nonce, BoxFuture<()>)>) {
    match slot {
        Some((_, watch)) => watch.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(due: Option<BootInstant>) {
    match due {
        Some(due) => tokio::time::sleep(due.since(clock::now())).await,
        None => std::future::pending().await,
    }
}
