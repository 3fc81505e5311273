//! What follows from each happening: at a peer, on its disk, in its work, at the resource.

use super::*;
use crate::outcome::Owner;

impl<P: Simulated> World<'_, P> {
    /// The frozen do nothing until they thaw, and then all of it in its order.
    fn deferred(&mut self, node: usize, happening: Happening<P::Message>) -> Option<Happening<P::Message>> {
        let thaw = self.nodes[node].frozen_until;
        if thaw <= self.now {
            return Some(happening);
        }
        if thaw < Nanos::MAX {
            self.queue.push(thaw, happening);
        }
        None
    }

    pub(super) fn happens(&mut self, happening: Happening<P::Message>) {
        let node = match &happening {
            Happening::Deliver { to, .. } => *to,
            Happening::Wake { node } | Happening::Stand { node, .. } => *node,
            Happening::Saved { node, .. } | Happening::Marked { node, .. } => *node,
            Happening::Check { node, .. } | Happening::Write { node, .. } => *node,
            Happening::Arrived { stamp } => return self.resource_takes(*stamp),
            Happening::Start { node, life } => {
                if self.nodes[*node].life == *life {
                    self.note(3, *node);
                    self.start(*node);
                }
                return;
            }
            Happening::Fault { number } => return self.fault(*number),
            Happening::FaultEnds { number, node } => return self.fault_ends(*number, *node),
            Happening::Heal => return self.heal(),
            Happening::Flap { node } => return self.flap(*node),
        };
        if let Some(happening) = self.deferred(node, happening) {
            self.happens_to(node, happening);
        }
    }

    fn happens_to(&mut self, n: usize, happening: Happening<P::Message>) {
        let now = self.local(n);
        let node = &mut self.nodes[n];
        let life_now = node.life;
        match happening {
            Happening::Deliver { envelope, .. } => {
                let Some(peer) = &mut node.peer else { return };
                let refused = peer.handle_message(now, *envelope).err();
                self.note(8, n);
                if let Some(refusal) = refused {
                    let what = format!("n{n} refuses an honest message: {refusal}");
                    self.history.violated("P2", self.now, what);
                }
            }
            Happening::Wake { .. } => {
                if node.wake_at > self.now {
                    return;
                }
                node.wake_at = Nanos::MAX;
                if let Some(peer) = &mut node.peer {
                    peer.handle_timeout(now);
                }
                self.note(1, n);
            }
            Happening::Stand { life, .. } if life == life_now => return self.stand(n),
            Happening::Saved { life, save, .. } if life == life_now => {
                let mut saved = None;
                let proof = save.with(|state| {
                    saved = Some(state.clone());
                    Ok::<_, ()>(())
                });
                if let (Some(peer), Ok(proof), Some(saved)) = (&mut node.peer, proof, saved) {
                    node.disk = saved;
                    peer.handle_proof(now, proof);
                }
                self.note(6, n);
            }
            Happening::Marked { life, invalidate, .. } if life == life_now => {
                self.close(n);
                if self.believes(n) {
                    self.history.stopwatch.lost(self.now);
                }
                let reason = invalidate.reason;
                let proof = invalidate.with(|_, _| {});
                self.history.sometimes.by_release +=
                    u64::from(reason == incumbent_core::peers::Loss::Surrendered);
                self.history.sometimes.by_expiry += u64::from(reason == incumbent_core::peers::Loss::Expired);
                self.nodes[n].belief = None;
                self.nodes[n].term += 1;
                self.say(n, || format!("is no leader any more: {reason:?}"));
                if let Some(peer) = &mut self.nodes[n].peer {
                    peer.handle_proof(now, proof);
                }
                self.note(5, n);
            }
            Happening::Check { term, .. } if term == node.term => self.work_checks(n),
            Happening::Write { term, stamp, .. } if term == node.term => self.work_writes(stamp),
            _ => return,
        }
        self.outputs(n);
    }

    /// Its user wants to lead, and says so again before that lapses.
    pub(super) fn stand(&mut self, node: usize) {
        let (now, ttl) = (self.local(node), self.plan.options.ttl());
        let life = self.nodes[node].life;
        if let Some(peer) = &mut self.nodes[node].peer {
            peer.stand(now, now + crate::clock::span(ttl));
            self.note(2, node);
            self.queue.push(self.now + ttl / 3, Happening::Stand { node, life });
            self.outputs(node);
        }
    }

    /// Does what the peer puts out, and sees when it is woken next.
    pub(super) fn outputs(&mut self, node: usize) {
        let life = self.nodes[node].life;
        while let Some(output) = self.nodes[node].peer.as_mut().and_then(P::poll_output) {
            match output {
                Output::Send(envelope) => self.send(node, envelope),
                Output::Save(save) => {
                    let slow =
                        self.nodes[node].slow_until > self.now || self.random.per_mille(self.slow_saves);
                    let longest = if slow { 2 * self.plan.options.ttl() } else { 5 * MS };
                    let lasts = if self.plan.options.lock_step { MS } else { self.random.below(longest) };
                    let at = self.now + lasts;
                    self.queue.push(at, Happening::Saved { node, life, save: Box::new(save) });
                }
                Output::Invalidate(invalidate) => {
                    let at = self.now + self.random.below(MS);
                    let invalidate = Box::new(invalidate);
                    self.queue.push(at, Happening::Marked { node, life, invalidate });
                }
                Output::Event(event) => self.event(node, event),
            }
        }
        let due = self.nodes[node].peer.as_ref().and_then(P::poll_timeout);
        if let Some(due) = due {
            let at = self.nodes[node].clock.true_time(due).max(self.now + 1);
            if at < self.nodes[node].wake_at {
                self.nodes[node].wake_at = at;
                self.queue.push(at, Happening::Wake { node });
            }
        }
    }

    fn event(&mut self, n: usize, event: Event) {
        self.say(n, || format!("{event:?}"));
        match event {
            Event::Elected(trust) => {
                if self.plan.options.majority && self.believes(n) {
                    let what = format!("n{n} is elected while its former leadership is valid");
                    self.history.violated("P3", self.now, what);
                }
                let until = self.nodes[n].clock.true_time(trust.valid_until);
                let token = trust.token;
                let owner = Owner { node: n, term: trust.term.0 };
                self.close(n);
                let token_number = token.map(|token| token.0);
                let hold = self.history.elected(owner, token_number, self.now, self.now, until);
                let node = &mut self.nodes[n];
                node.belief = Some(Belief { token, valid_until: trust.valid_until, hold });
                node.term += 1;
                let term = node.term;
                self.note(4, n);
                self.queue.push(self.now + MS, Happening::Check { node: n, term });
            }
            Event::Extended(trust) => {
                if !self.believes(n) {
                    let what = format!("n{n} extends a leadership that was over");
                    self.history.violated("P4", self.now, what);
                }
                let until = self.nodes[n].clock.true_time(trust.valid_until);
                let is_hit = self.nodes[n].hit_until > self.now;
                if let Some(belief) = &mut self.nodes[n].belief {
                    belief.valid_until = trust.valid_until;
                    self.history.holds[belief.hold].until = until;
                    if !is_hit {
                        self.history.stopwatch.goes_on();
                    }
                }
            }
            Event::LeaderChanged(leader) => {
                let leader = leader.and_then(|id| self.nodes.iter().position(|node| node.id == id));
                self.history.painter.view(n, self.now, leader);
            }
        }
    }

    fn send(&mut self, from: usize, envelope: Envelope<P::Message>) {
        let kind = envelope.message.kind();
        *self.messages.entry(kind).or_default() += 1;
        // Raft's request promises nothing, and does not wait.
        let promises = kind != "vote";
        if promises && self.nodes[from].disk.term < envelope.term {
            let what = format!("n{from} speaks of term {}, which it has not saved: {kind}", envelope.term);
            self.history.violated("P1", self.now, what);
        }
        let Some(to) = self.nodes.iter().position(|node| node.id == envelope.to) else { return };
        let [first, again] = self.network.deliveries(&mut self.random, self.now, from, to);
        self.say(from, || format!("says to n{to}: {:?} (term {})", envelope.message, envelope.term));
        self.history.painter.letter(from, to, kind, self.now, first);
        if let Some(at) = again {
            self.queue.push(at, Happening::Deliver { to, envelope: Box::new(envelope.clone()) });
        }
        if let Some(at) = first {
            self.queue.push(at, Happening::Deliver { to, envelope: Box::new(envelope) });
        }
    }

    // ---- the work ----

    fn work_checks(&mut self, node: usize) {
        let think = self.random.below(self.plan.options.ttl() / 10);
        let term = self.nodes[node].term;
        if let Some(Belief { token, hold, .. }) = self.nodes[node].belief.filter(|_| self.believes(node)) {
            let stamp = token.map_or(Stamp::Unmarked(hold), |token| Stamp::Token(token.0));
            if let Stamp::Token(token) = stamp {
                self.history.checked(self.now, token);
            }
            self.queue.push(self.now + think, Happening::Write { node, term, stamp });
        }
        let next = self.now + think + self.plan.options.ttl() / 8;
        self.queue.push(next, Happening::Check { node, term });
    }

    /// What was checked before is written now, whatever has happened meanwhile: only the fence can refuse it.
    fn work_writes(&mut self, stamp: Stamp) {
        let travels = MS / 10 + self.random.below(self.plan.options.delay_ms * MS);
        self.queue.push(self.now + travels, Happening::Arrived { stamp });
    }

    fn resource_takes(&mut self, stamp: Stamp) {
        match stamp {
            Stamp::Token(token) => {
                self.history.trace.note(self.now, 7 << 32 | token);
                self.history.arrived(self.now, token);
            }
            Stamp::Unmarked(hold) => {
                self.history.trace.note(self.now, 1 << 48 | hold as u64);
                self.history.arrived_unmarked(hold);
            }
        }
    }
}
