//! One peer with a disk that always works, and what it says.

use std::time::Duration;

use incumbent_core::peers::raft::{Message, Raft};
use incumbent_core::peers::{
    Acknowledgement, Ballot, Config, Durable, Envelope, Event, List, Loss, Output, Protocol, Refusal, Term,
};
use incumbent_core::timing::PeerTiming;
use incumbent_core::{Authority, BootInstant, CandidateId};

pub(crate) const TTL: Duration = Duration::from_secs(1);
/// A peer that started at 0 may vote again, in milliseconds, but does not ask for votes itself yet.
pub(crate) const FREE: u64 = 1_001;
/// Later than any wait for an election.
pub(crate) const LATE: u64 = 10_000;
/// The version of the list of peers.
pub(crate) const LIST: u64 = 3;

pub(crate) fn id(name: &str) -> CandidateId {
    CandidateId::new(name).expect("a good name")
}

pub(crate) fn cluster() -> Authority {
    Authority::new("cluster-1")
}

pub(crate) fn ms(count: u64) -> BootInstant {
    BootInstant::ZERO + Duration::from_millis(count)
}

pub(crate) fn ballot() -> Ballot {
    Ballot { data_version: 0, surrendered: None }
}

/// An answer to a heartbeat of `term`, from a peer that stands.
pub(crate) fn answer(term: u64, round: u64, data_version: u64) -> Message {
    Message::HeartbeatAnswer(Acknowledgement { asked: Term(term), round, data_version, standing: true })
}

pub(crate) fn config(name: &str, members: &[(&str, u8)]) -> Config {
    let members = members.iter().map(|(peer, priority)| (id(peer), *priority));
    Config {
        cluster: cluster(),
        id: id(name),
        list: List::new(LIST, members),
        timing: PeerTiming::new(TTL, 1_000).expect("intervals that fit"),
    }
}

/// What a peer has done since the last look.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Said {
    pub(crate) sent: Vec<(CandidateId, Term, Message)>,
    /// How many saves each of these had to wait for.
    pub(crate) saves_before: Vec<u32>,
    pub(crate) events: Vec<Event>,
    pub(crate) lost: Vec<Loss>,
}

pub(crate) struct Peer {
    pub(crate) raft: Raft,
    pub(crate) disk: Durable,
}

impl Peer {
    /// Peer `a` of three.
    pub(crate) fn of_three() -> Peer {
        Peer::new(config("a", &[("a", 1), ("b", 1), ("c", 1)]))
    }

    pub(crate) fn new(config: Config) -> Peer {
        let disk = Durable::new(config.cluster.clone(), config.id.clone());
        let raft = Raft::new(config, disk.clone(), 7, BootInstant::ZERO).expect("a good start");
        let mut peer = Peer { raft, disk };
        peer.stands(0);
        peer
    }

    /// Crashes and starts again with what is on its disk.
    pub(crate) fn restart(&mut self, at: u64) {
        self.raft =
            Raft::new(self.raft.config().clone(), self.disk.clone(), 8, ms(at)).expect("a good start");
        self.stands(at);
    }

    /// Wants to lead for ever.
    pub(crate) fn stands(&mut self, at: u64) {
        self.raft.stand(ms(at), BootInstant::FAR_FUTURE);
    }

    pub(crate) fn hears(&mut self, at: u64, from: &str, term: u64, message: Message) -> Said {
        self.takes(at, from, term, message).expect("no refusal")
    }

    pub(crate) fn takes(
        &mut self,
        at: u64,
        from: &str,
        term: u64,
        message: Message,
    ) -> Result<Said, Refusal> {
        let to = self.raft.config().id.clone();
        let envelope =
            Envelope { cluster: cluster(), list: LIST, from: id(from), to, term: Term(term), message };
        self.raft.handle_message(ms(at), envelope)?;
        Ok(self.drain(at))
    }

    pub(crate) fn wakes(&mut self, at: u64) -> Said {
        self.raft.handle_timeout(ms(at));
        self.drain(at)
    }

    pub(crate) fn surrenders(&mut self, at: u64, to: Option<&str>) -> Said {
        self.raft.surrender(ms(at), to.map(id).as_ref()).expect("a good successor");
        self.drain(at)
    }

    pub(crate) fn drain(&mut self, at: u64) -> Said {
        let mut said = Said::default();
        let mut saves = 0;
        while let Some(output) = self.raft.poll_output() {
            match output {
                Output::Save(save) => {
                    saves += 1;
                    let proof = save.with(|state| {
                        self.disk = state.clone();
                        Ok::<_, ()>(())
                    });
                    self.raft.handle_proof(ms(at), proof.expect("a disk that works"));
                }
                Output::Invalidate(invalidate) => {
                    let proof = invalidate.with(|_, reason| said.lost.push(reason));
                    self.raft.handle_proof(ms(at), proof);
                }
                Output::Send(envelope) => {
                    said.sent.push((envelope.to, envelope.term, envelope.message));
                    said.saves_before.push(saves);
                }
                Output::Event(event) => said.events.push(event),
            }
        }
        said
    }

    /// Whether it votes for `candidate`.
    pub(crate) fn votes(&mut self, at: u64, candidate: &str, term: u64, ballot: Ballot) -> bool {
        let said = self.hears(at, candidate, term, Message::Vote(ballot));
        let answer = said.sent.iter().find_map(|(to, _, message)| match message {
            Message::VoteAnswer { asked, granted } => Some((to.as_str(), asked.0, *granted)),
            _ => None,
        });
        let (to, asked, granted) = answer.expect("an answer to the vote");
        assert_eq!((to, asked), (candidate, term));
        granted
    }

    /// Asks for pre-votes at `at`, which must be due, and returns the attempt.
    pub(crate) fn asks(&mut self, at: u64) -> u64 {
        match self.wakes(at).sent.first() {
            Some((_, _, Message::PreVote { attempt, .. })) => *attempt,
            other => panic!("no pre-vote: {other:?}"),
        }
    }

    /// Lets `b` elect it at `at`: it leads in its next term, unacknowledged.
    pub(crate) fn is_elected(&mut self, at: u64) -> u64 {
        let attempt = self.asks(at);
        let term = self.raft.term().0;
        self.hears(at, "b", term, Message::PreVoteAnswer { attempt, granted: true });
        let won = self.hears(at, "b", term + 1, Message::VoteAnswer { asked: Term(term + 1), granted: true });
        assert!(matches!(won.sent.first(), Some((_, _, Message::Heartbeat { round: 1 }))), "{won:?}");
        term + 1
    }

    /// Lets `from` acknowledge a round.
    pub(crate) fn is_acknowledged(&mut self, at: u64, from: &str, term: u64, round: u64) -> Said {
        self.hears(at, from, term, answer(term, round, 0))
    }
}
