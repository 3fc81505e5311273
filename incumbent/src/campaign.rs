//! A candidate's campaign, event by event: what [`Candidate::run`](crate::Candidate::run) is made of.

use incumbent_core::{BootInstant, Error, Input, Leader, LossReason, StopReason};
use tokio::sync::mpsc;

use crate::leadership::Leadership;

/// What happens to a candidate, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CampaignEvent {
    /// A term began.
    Elected(Leadership),
    /// The work of the term shall stop, at the latest by `until`; answer with [`Campaign::work_stopped`].
    Stopping {
        /// Why.
        reason: StopReason,
        /// The drain bound, or the deadline in an outage.
        until: Option<BootInstant>,
    },
    /// The term is over. If the work still runs, stop it and answer with [`Campaign::work_stopped`]: until then there
    /// is no further campaign.
    Lost(LossReason),
    /// Another leads, or nobody does, as far as the store shows it.
    LeaderChanged(Option<Leader>),
    /// Another process campaigns under the same id.
    SameId(Leader),
    /// A call to the store failed; it will be tried again.
    Trouble(Error),
    /// The store answers again.
    Recovered,
    /// The store has confirmed that nothing of the last term is left in it.
    Released {
        /// When the candidate campaigns again; `None` if it shuts down.
        campaigning_at: Option<BootInstant>,
    },
    /// The campaign has ended for good.
    Ended,
}

/// A candidate that stands for election until it is told to stop. Dropping it lets a lease that it holds run out: nobody is left
/// who could confirm that the work has stopped.
#[derive(Debug)]
pub struct Campaign {
    pub(crate) events: mpsc::UnboundedReceiver<CampaignEvent>,
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
}

impl Campaign {
    /// The next event; `None` after [`CampaignEvent::Ended`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<CampaignEvent> {
        let event = self.events.recv().await;
        if matches!(event, Some(CampaignEvent::Ended)) {
            self.events.close();
        }
        event
    }

    /// Tells the candidate to go: it gives up its term, if it has one, and campaigns again only if it merely resigned.
    pub fn stop(&self, reason: StopReason) {
        let _ = self.inputs.send(Input::Stop(reason));
    }

    /// Confirms that the work of the current term does not run and never will again. Only then is the grant released.
    pub fn work_stopped(&self) {
        let _ = self.inputs.send(Input::WorkStopped);
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        let _ = self.inputs.send(Input::Abandoned);
    }
}
