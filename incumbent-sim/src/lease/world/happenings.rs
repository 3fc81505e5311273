//! What follows from each happening: at a candidate, in its work, at the store and at the resource.

use incumbent_core::{
    Acquired, Answer, BootInstant, Call, CallId, Event, FencingToken, Input, LossReason, Output, Renewed,
};

use super::{Content, Ended, Happening, Message, Store, World};
use crate::clock::{MS, Nanos};
use crate::lease::candidate::{Belief, Flow, Running, understand};
use crate::lease::store::{Ask, Campaign, Held};
use crate::lease::{adapter, queue, session};
use crate::outcome::Owner;

impl World<'_> {
    /// The frozen do nothing until they thaw, and then all of it in its order.
    fn is_deferred(&mut self, node: usize, happening: Happening) -> Option<Happening> {
        let thaw = self.nodes[node].frozen_until;
        if thaw <= self.now {
            return Some(happening);
        }
        if thaw < Nanos::MAX {
            self.queue.push(thaw, happening);
        }
        None
    }

    pub(super) fn happens(&mut self, happening: Happening) {
        let node = match &happening {
            Happening::Wake { node } | Happening::Hint { node, .. } => *node,
            Happening::Check { node, .. } | Happening::Write { node, .. } => *node,
            Happening::Stopped { node, .. } => *node,
            Happening::Message(message) if message.content.is_answer() => message.node,
            _ => return self.happens_elsewhere(happening),
        };
        let Some(happening) = self.is_deferred(node, happening) else { return };
        match happening {
            Happening::Wake { node } if self.nodes[node].wake_at <= self.now => {
                self.note(1, node);
                self.nodes[node].wake_at = Nanos::MAX;
                self.wake(node);
            }
            Happening::Hint { node, life } if self.nodes[node].life == life => {
                self.note(2, node);
                self.input(node, Input::Look);
            }
            Happening::Message(message) => self.answered(*message),
            Happening::Check { node, term } => self.work_checks(node, term),
            Happening::Write { node, term, token } => self.work_writes(node, term, token),
            Happening::Stopped { node, term } => self.work_stopped(node, term),
            _ => {}
        }
    }

    fn happens_elsewhere(&mut self, happening: Happening) {
        match happening {
            Happening::Message(message) => self.asked(message),
            Happening::Arrived { token } => self.resource_takes(token),
            Happening::StoreLooks => self.store_looks(),
            Happening::Start { node, life } if self.nodes[node].life == life => {
                self.note(3, node);
                self.start(node);
            }
            Happening::Fault { number } => self.fault(number),
            Happening::FaultEnds { number, node } => self.fault_ends(number, node),
            Happening::Heal => self.heal(),
            _ => {}
        }
    }

    pub(super) fn note(&mut self, what: u64, node: usize) {
        self.history.trace.note(self.now, what << 32 | node as u64);
    }

    // ---- the elector ----

    pub(super) fn input(&mut self, node: usize, input: Input) {
        let now = self.local(node);
        if let Some(elector) = &mut self.nodes[node].elector {
            elector.handle_input(now, input);
            self.outputs(node);
        }
    }

    /// Does what the elector puts out, and sees when it is woken next.
    pub(super) fn outputs(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].elector.as_mut().and_then(|elector| elector.poll_output()) {
            match output {
                Output::Call(id, call) => self.begin(node, id, call),
                Output::Cancel(id) => {
                    let state = &mut self.nodes[node];
                    if let Some(running) = state.running.take_if(|running| running.id == id) {
                        self.history.sometimes.renewal_unknown +=
                            u64::from(matches!(running.call, Call::Renew(..)));
                        if let (Flow::Queue(flow), Some(memory)) = (&running.flow, &mut state.session) {
                            flow.given_up(memory);
                        }
                    }
                }
                Output::Event(event) => self.event(node, event),
            }
        }
        let due = self.nodes[node].elector.as_ref().and_then(|elector| elector.poll_timeout());
        if let Some(due) = due {
            let at = self.clocks[node].true_time(due).max(self.now + 1);
            if at < self.nodes[node].wake_at {
                self.nodes[node].wake_at = at;
                self.queue.push(at, Happening::Wake { node });
            }
        }
    }

    fn event(&mut self, node: usize, event: Event) {
        self.say(node, || format!("{event:?}"));
        match event {
            Event::Elected(grant, deadline) => {
                let token = grant.token.unwrap_or(FencingToken(0)).0;
                self.note(4, token as usize);
                if let Some(ended) = self.ended.take().filter(|ended| ended.node != node) {
                    self.history.sometimes.by_release += u64::from(ended.released);
                    self.history.sometimes.by_expiry += u64::from(!ended.released);
                }
                let until = self.clocks[node].true_time(deadline);
                let owner = Owner { node, term: token };
                let hold = self.history.elected(owner, Some(token), self.asked_at, self.now, until);
                self.nodes[node].belief = Some(Belief { token, deadline, hold });
                let work = &mut self.nodes[node].work;
                work.running = true;
                work.term += 1;
                let term = work.term;
                self.queue.push(self.now + MS, Happening::Check { node, term });
            }
            Event::Extended(deadline) => {
                if !self.believes(node) {
                    let what = format!("n{node} extends a term that was over");
                    self.history.violated("P4", self.now, what);
                }
                let until = self.clocks[node].true_time(deadline);
                if let Some(belief) = &mut self.nodes[node].belief {
                    belief.deadline = deadline;
                    self.history.holds[belief.hold].until = until;
                    self.history.stopwatch.goes_on();
                }
            }
            Event::Stopping { .. } => self.work_shall_stop(node),
            Event::Lost(reason) => {
                self.note(5, node);
                self.close(node, self.now);
                self.nodes[node].belief = None;
                self.history.stopwatch.lost(self.now);
                let released = matches!(reason, LossReason::Stopped(_));
                self.ended = Some(Ended { released, node });
                if self.nodes[node].work.running {
                    self.work_shall_stop(node);
                }
            }
            Event::Ended => {
                let at = self.now + self.random.below(self.plan.options.ttl());
                self.crash(node);
                let life = self.nodes[node].life;
                self.queue.push(at, Happening::Start { node, life });
            }
            _ => {}
        }
    }

    // ---- the work ----

    /// It is told to stop, which takes a while. A term that is over tells it again.
    fn work_shall_stop(&mut self, node: usize) {
        let term = self.nodes[node].work.term;
        let at = self.now + self.random.below(self.plan.options.stop_ms * MS);
        self.queue.push(at, Happening::Stopped { node, term });
    }

    fn work_stopped(&mut self, node: usize, term: u32) {
        let work = &mut self.nodes[node].work;
        if work.running && work.term == term {
            work.running = false;
            self.note(6, node);
            self.input(node, Input::WorkStopped);
        }
    }

    fn works(&self, node: usize, term: u32) -> bool {
        let work = &self.nodes[node].work;
        work.running && work.term == term
    }

    fn work_checks(&mut self, node: usize, term: u32) {
        if !self.works(node, term) {
            return;
        }
        let think = self.random.below(self.plan.options.think_ms * MS);
        match self.nodes[node].belief {
            Some(belief) if self.believes(node) => {
                self.history.checked(self.now, belief.token);
                let token = belief.token;
                self.queue.push(self.now + think, Happening::Write { node, term, token });
            }
            _ => {
                self.queue
                    .push(self.now + think + self.plan.options.ttl() / 8, Happening::Check { node, term });
            }
        }
    }

    /// What was checked before is written now, whatever has happened meanwhile: only the fence can refuse it.
    fn work_writes(&mut self, node: usize, term: u32, token: u64) {
        if !self.works(node, term) {
            return;
        }
        let travels = MS / 5 + self.random.below(self.plan.options.delay_ms * MS);
        self.queue.push(self.now + travels, Happening::Arrived { token });
        let pause = self.plan.options.ttl() / 4;
        let next = self.now + pause / 2 + self.random.below(pause);
        self.queue.push(next, Happening::Check { node, term });
    }

    fn resource_takes(&mut self, token: u64) {
        self.note(7, token as usize);
        self.history.arrived(self.now, token);
    }

    // ---- the calls ----

    fn begin(&mut self, node: usize, id: CallId, call: Call) {
        self.say(node, || call_text(&call));
        let sent_at = self.local(node);
        let is_note = matches!(call, Call::ReadHandover(_));
        let mut running = Running { id, call, issued_at: self.now, sent_at, request: 0, flow: Flow::None };
        let content = match (&self.store, &running.call) {
            _ if is_note => Content::ReadNote,
            (Store::Record(_), call) => {
                let (flow, next) = adapter::Flow::begin(call, &mut self.nodes[node].memory);
                running.flow = Flow::Record(flow);
                match next {
                    adapter::Next::Send(ask) => Content::AskRecord(ask),
                    adapter::Next::Answer(answer) => return self.input(node, Input::Answer(id, answer)),
                }
            }
            (Store::Queue(_), call) => {
                let ttl = self.timing.ttl;
                let new = || session::Memory::new(node, ttl);
                let memory = self.nodes[node].session.get_or_insert_with(new);
                let (flow, next) = session::Flow::begin(call, sent_at, memory);
                running.flow = Flow::Queue(flow);
                match next {
                    session::Next::Send(ask) => Content::AskQueue(ask),
                    session::Next::Answer(answer) => return self.input(node, Input::Answer(id, answer)),
                }
            }
            (Store::Lease(_), Call::Acquire(claim)) => {
                Content::Ask(Ask::Acquire(Campaign { id: node, nonce: claim.nonce }))
            }
            (Store::Lease(_), Call::Renew(claim, grant)) => {
                let token = grant.token.unwrap_or(FencingToken(0)).0;
                Content::Ask(Ask::Renew(Held { by: Campaign { id: node, nonce: claim.nonce }, token }))
            }
            (Store::Lease(_), Call::Release(claim, _, next)) => {
                let next = next.as_ref().and_then(|next| self.ids.iter().position(|id| id == next));
                Content::Ask(Ask::Release(Campaign { id: node, nonce: claim.nonce }, next))
            }
            (Store::Lease(_), Call::ReadHandover(_)) => Content::ReadNote,
        };
        self.nodes[node].running = Some(running);
        self.send(node, self.nodes[node].life, id, 0, content);
    }

    fn send(&mut self, node: usize, life: u32, call: CallId, request: u16, content: Content) {
        let store = self.store_index();
        let (from, to) = if content.is_answer() { (store, node) } else { (node, store) };
        let kind = content.kind();
        self.messages[kind] += 1;
        let [first, again] = self.network.deliveries(&mut self.random, self.now, from, to);
        self.history.painter.letter(from, to, Content::KINDS[kind], self.now, first);
        if let Some(at) = again {
            let message = Message { node, life, call, request, content: content.clone() };
            self.queue.push(at, Happening::Message(Box::new(message)));
        }
        if let Some(at) = first {
            let message = Message { node, life, call, request, content };
            self.queue.push(at, Happening::Message(Box::new(message)));
        }
    }

    /// A request reaches the store.
    fn asked(&mut self, message: Box<Message>) {
        if self.store_away_until > self.now {
            if !self.store_is_down {
                let at = self.store_away_until;
                self.queue.push(at, Happening::Message(message));
            }
            return;
        }
        self.store_returns();
        let Message { node, life, call, request, content } = *message;
        self.note(8, node);
        let clock = self.clocks[self.store_index()];
        let (mut wrote, mut ends_at) = (false, None);
        let answer = match (&mut self.store, content) {
            (_, Content::ReadNote) => Content::Note(self.note),
            (Store::Lease(store), Content::Ask(ask)) => {
                let now = clock.boot(self.now);
                let before = store.held(now);
                let tell = store.answer(now, &mut self.random, ask);
                wrote = before != store.held(now);
                ends_at = store.runs_out_at();
                Content::Tell(tell)
            }
            (Store::Queue(store), Content::AskQueue(ask)) => {
                let (tell, changed) = store.answer(clock.boot(self.now), &mut self.random, ask);
                wrote = changed;
                ends_at = store.next_end();
                Content::TellQueue(tell)
            }
            (Store::Record(store), Content::AskRecord(ask)) => {
                let (tell, swapped) = store.answer(self.now, clock.wall_us(self.now), &mut self.random, ask);
                wrote = swapped;
                Content::TellRecord(tell)
            }
            _ => return,
        };
        self.look_when_it_ends(ends_at);
        self.send(node, life, call, request, answer);
        if wrote {
            self.hint(Some(node));
        }
    }

    /// Tells the candidates, except who did it, that something changed.
    pub(super) fn hint(&mut self, but: Option<usize>) {
        if self.hints_lost >= 1000 {
            return;
        }
        let store = self.store_index();
        for node in (0..self.nodes.len()).filter(|node| Some(*node) != but) {
            if self.nodes[node].is_up() && !self.random.per_mille(self.hints_lost) {
                let life = self.nodes[node].life;
                let at = self.network.deliveries(&mut self.random, self.now, store, node)[0];
                self.messages[Content::HINT] += 1;
                self.history.painter.letter(store, node, Content::KINDS[Content::HINT], self.now, at);
                if let Some(at) = at {
                    self.queue.push(at, Happening::Hint { node, life });
                }
            }
        }
    }

    /// A lease that has run out frees the election.
    fn store_looks(&mut self) {
        if self.store_look_at > self.now {
            return;
        }
        self.store_look_at = Nanos::MAX;
        if self.store_away_until > self.now {
            self.store_look_at = self.store_away_until;
            return self.queue.push(self.store_away_until, Happening::StoreLooks);
        }
        self.store_returns();
        let clock = self.clocks[self.store_index()];
        let now = clock.boot(self.now);
        let (ended, ends_at) = match &mut self.store {
            Store::Lease(store) => {
                let ended = store.runs_out_at().is_some_and(|at| at <= now);
                store.held(now);
                (ended, store.runs_out_at())
            }
            Store::Queue(store) => (store.expire(now), store.next_end()),
            Store::Record(_) => return,
        };
        self.look_when_it_ends(ends_at);
        if ended {
            self.hint(None);
        }
    }

    fn look_when_it_ends(&mut self, ends_at: Option<BootInstant>) {
        let Some(ends_at) = ends_at else { return };
        let at = self.clocks[self.store_index()].true_time(ends_at).max(self.now + 1);
        if at < self.store_look_at {
            self.store_look_at = at;
            self.queue.push(at, Happening::StoreLooks);
        }
    }

    /// The call takes another request.
    fn go_on(&mut self, node: usize, mut running: Running, content: Content) {
        running.request += 1;
        running.sent_at = self.local(node);
        let (call, request) = (running.id, running.request);
        self.nodes[node].running = Some(running);
        self.send(node, self.nodes[node].life, call, request, content);
    }

    /// An answer reaches a candidate.
    fn answered(&mut self, message: Message) {
        let Message { node, life, call, request, content } = message;
        if self.nodes[node].life != life {
            return;
        }
        self.note(9, node);
        let now = self.local(node);
        let answers = |running: &mut Running| running.id == call && running.request == request;
        let Some(mut running) = self.nodes[node].running.take_if(answers) else { return };
        let answer = match content {
            Content::Note(note) => Some(Answer::ReadHandover(Ok(self.handover(note)))),
            Content::Tell(tell) => understand(&running, now, tell, &self.authority, &self.ids),
            Content::TellRecord(tell) => {
                let Flow::Record(flow) = &mut running.flow else { return };
                let memory = &mut self.nodes[node].memory;
                let wall_ms = self.clocks[node].wall_us(self.now) / 1_000;
                match flow.answered(now, running.sent_at, wall_ms, &running.call, memory, tell) {
                    adapter::Next::Answer(answer) => Some(answer),
                    adapter::Next::Send(ask) => return self.go_on(node, running, Content::AskRecord(ask)),
                }
            }
            Content::TellQueue(tell) => {
                let Flow::Queue(flow) = &mut running.flow else { return };
                let Some(memory) = &mut self.nodes[node].session else { return };
                let next = flow.answered(now, running.sent_at, &running.call, memory, &self.ids, tell);
                for lease in session::revocable(memory) {
                    self.send(node, life, call, u16::MAX, Content::AskQueue(queue::Ask::Revoke(lease)));
                }
                match next {
                    session::Next::Answer(answer) => Some(answer),
                    session::Next::Send(ask) => return self.go_on(node, running, Content::AskQueue(ask)),
                }
            }
            Content::Ask(_) | Content::AskRecord(_) | Content::AskQueue(_) | Content::ReadNote => None,
        };
        let Some(answer) = answer else { return };
        self.say(node, || answer_text(&answer));
        // The elector may begin a term with it: the history says since when it was asked for.
        self.asked_at = running.issued_at;
        self.input(node, Input::Answer(call, answer));
    }
}

fn call_text(call: &Call) -> String {
    match call {
        Call::Acquire(claim) => format!("tries to acquire, campaign {:.4}", claim.nonce.to_string()),
        Call::Renew(_, grant) => format!("renews {:?}", grant.token),
        Call::Release(_, grant, next) => {
            format!("releases {:?}, next {next:?}", grant.as_ref().and_then(|grant| grant.token))
        }
        Call::ReadHandover(_) => "reads the note".to_owned(),
    }
}

fn answer_text(answer: &Answer) -> String {
    match answer {
        Answer::Acquire(Ok(Acquired::Granted(grant))) => format!("is granted {:?}", grant.token),
        Answer::Acquire(Ok(Acquired::Held { .. })) => "hears that it is held".to_owned(),
        Answer::Renew(Ok(Renewed::Extended { .. })) => "is extended".to_owned(),
        Answer::Renew(Ok(Renewed::Lost(_))) => "hears that it is lost".to_owned(),
        other => format!("hears {other:?}"),
    }
}
