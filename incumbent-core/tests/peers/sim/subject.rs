//! What is simulated, and what each protocol says when it votes and when it leads.

use incumbent_core::CandidateId;
use incumbent_core::peers::bully::{self, Bully};
use incumbent_core::peers::raft::{self, Raft};
use incumbent_core::peers::ring::{self, Circulation, Ring, RingConfig, Word};
use incumbent_core::peers::{Acknowledgement, Claim, ClaimConfig, Config, Criterion, Envelope, Protocol};

/// A word that goes around: its owner, its attempt or epoch, and whether that one is elected.
pub(super) type Name = (CandidateId, u64, bool);

pub(super) trait Subject: Protocol {
    /// What is the same at all peers of a run.
    type Setting: Copy;

    fn configure(setting: Self::Setting, peers: Config) -> Self::Config;

    /// At most one leads.
    fn excludes(setting: Self::Setting) -> bool;

    /// A voter refuses older data than its own.
    fn heeds_data(setting: Self::Setting) -> bool;

    /// Whether this gives the sender's one vote in the envelope's term.
    fn votes(setting: Self::Setting, envelope: &Envelope<Self::Message>) -> bool;

    /// Whether only the one leader of a term may say this.
    fn leads(setting: Self::Setting, message: &Self::Message) -> bool;

    /// The word that goes around with this message.
    fn word(_message: &Self::Message) -> Option<Name> {
        None
    }
}

impl Subject for Raft {
    type Setting = ();

    fn configure((): (), peers: Config) -> Config {
        peers
    }

    fn excludes((): ()) -> bool {
        true
    }

    fn heeds_data((): ()) -> bool {
        true
    }

    fn votes((): (), envelope: &Envelope<raft::Message>) -> bool {
        matches!(envelope.message, raft::Message::VoteAnswer { asked, granted: true } if asked == envelope.term)
    }

    fn leads((): (), message: &raft::Message) -> bool {
        matches!(message, raft::Message::Heartbeat { .. })
    }
}

/// Of Bully and Ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claims {
    pub(super) majority: bool,
    pub(super) criterion: Criterion,
    pub(super) circulation: Circulation,
}

impl Claims {
    fn configure(self, peers: Config) -> ClaimConfig {
        ClaimConfig { peers, majority: self.majority, criterion: self.criterion }
    }

    fn heeds_data(self) -> bool {
        self.majority && self.criterion == Criterion::MostRecentData
    }

    fn votes<M>(self, envelope: &Envelope<M>, acknowledgement: Acknowledgement) -> bool {
        self.majority && acknowledgement.asked == envelope.term
    }

    fn leads(self, claim: &Claim) -> bool {
        self.majority && claim.established
    }
}

impl Subject for Bully {
    type Setting = Claims;

    fn configure(setting: Claims, peers: Config) -> ClaimConfig {
        setting.configure(peers)
    }

    fn excludes(setting: Claims) -> bool {
        setting.majority
    }

    fn heeds_data(setting: Claims) -> bool {
        setting.heeds_data()
    }

    fn votes(setting: Claims, envelope: &Envelope<bully::Message>) -> bool {
        matches!(envelope.message, bully::Message::CoordinatorAnswer(answer) if setting.votes(envelope, answer))
    }

    fn leads(setting: Claims, message: &bully::Message) -> bool {
        matches!(message, bully::Message::Coordinator(claim) if setting.leads(claim))
    }
}

impl Subject for Ring {
    type Setting = Claims;

    fn configure(setting: Claims, peers: Config) -> RingConfig {
        RingConfig { claim: setting.configure(peers), circulation: setting.circulation }
    }

    fn excludes(setting: Claims) -> bool {
        setting.majority
    }

    fn heeds_data(setting: Claims) -> bool {
        setting.heeds_data()
    }

    fn votes(setting: Claims, envelope: &Envelope<ring::Message>) -> bool {
        matches!(envelope.message, ring::Message::HeartbeatAnswer(answer) if setting.votes(envelope, answer))
    }

    fn leads(setting: Claims, message: &ring::Message) -> bool {
        matches!(message, ring::Message::Heartbeat(claim) if setting.leads(claim))
    }

    fn word(message: &ring::Message) -> Option<Name> {
        let ring::Message::Pass { word, .. } = message else { return None };
        Some(match word {
            Word::Election { number, attempt, .. } => (number.id.clone(), *attempt, false),
            Word::Collect { starter, attempt, .. } => (starter.clone(), *attempt, false),
            Word::Elected { coordinator, epoch, .. } => (coordinator.clone(), epoch.0, true),
        })
    }
}
