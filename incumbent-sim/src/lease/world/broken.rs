//! How each fault is done, and how it ends; the heal.

use incumbent_core::{Call, Input, StopReason};

use super::{Happening, Store, World};
use crate::clock::{HOUR, MS, Nanos};
use crate::network::Weather;
use crate::outcome::Illness;
use crate::plan::{Fault, Kind, Whom};

impl World<'_> {
    pub(super) fn fault(&mut self, number: usize) {
        let Fault { kind, whom, lasts_ns, dice, .. } = self.plan.faults[number];
        let leader = self.leader();
        let node = match whom {
            Whom::Leader => leader.unwrap_or(0),
            Whom::Node(node) => node,
        };
        self.note(10 + kind as u64, node);
        self.say(node, || format!("FAULT {number}: {kind:?} for {:.3} s", lasts_ns as f64 / 1e9));
        self.history.counts.faults += 1;
        self.history.sometimes.faults_at_once += u64::from(self.active_faults > 0);
        let until = self.now + lasts_ns;
        let store = self.store_index();
        let mut lasts = false;
        if leader == Some(node) && matches!(kind, Kind::Freeze | Kind::CutOut | Kind::CutIn | Kind::CutBoth) {
            self.history.stopwatch.lost(self.now);
        }
        let illness = match kind {
            Kind::Crash => Some(Illness::Down),
            Kind::Freeze => Some(Illness::Frozen),
            Kind::CutOut | Kind::CutIn | Kind::CutBoth => Some(Illness::CutOff),
            _ => None,
        };
        if let Some(illness) = illness {
            self.history.painter.outage(node, self.now, until, illness);
        }
        match kind {
            Kind::Crash => {
                self.crash(node);
                let life = self.nodes[node].life;
                self.queue.push(until, Happening::Start { node, life });
            }
            Kind::Freeze => {
                self.nodes[node].frozen_until = until.max(self.nodes[node].frozen_until);
                lasts = true;
            }
            Kind::CutOut | Kind::CutIn | Kind::CutBoth => {
                if kind != Kind::CutIn {
                    self.network.cut(node, store);
                }
                if kind != Kind::CutOut {
                    self.network.cut(store, node);
                }
                match leader {
                    Some(leader) if leader == node => self.history.sometimes.leader_without_majority += 1,
                    Some(_) => self.history.sometimes.leader_with_majority += 1,
                    None => {}
                }
                lasts = true;
            }
            Kind::ClogOut => self.network.clog(node, store, until),
            Kind::ClogIn => self.network.clog(store, node, until),
            Kind::Storm => {
                let delay_max = [50 * MS, self.plan.options.ttl() / 4][(dice & 1) as usize];
                self.network.weather = Weather { delay_max, loss: 300, ..self.calm };
                lasts = true;
            }
            Kind::Resign => self.stop_unless_frozen(node, StopReason::Resigned),
            Kind::HandOver => {
                if let Some(leader) = leader
                    && let Some(belief) = self.nodes[leader].belief
                {
                    self.note = Some((belief.token, dice as usize % self.nodes.len()));
                    self.hint(None);
                }
            }
            Kind::ShutDown => self.stop_unless_frozen(node, StopReason::Shutdown),
            Kind::SetWallClock => {
                // Where tokens are made from the store's clock, that it goes back is what its operator was warned of.
                let counts = !matches!(self.store, Store::Record(_));
                let whose = if dice & 1 == 0 && counts { store } else { node };
                let by = [-(HOUR as i64), HOUR as i64, -(MS as i64)][dice as usize % 3];
                self.clocks[whose].set_wall(by);
            }
            Kind::Hint => {
                let life = self.nodes[node].life;
                self.queue.push(self.now, Happening::Hint { node, life });
            }
            Kind::StoreFreeze => self.store_away(until, false),
            Kind::StoreCrash => {
                self.store_away(until, true);
                self.store_changes();
            }
            Kind::ResourceRestart => self.history.restart_resource(),
            Kind::Delete => {
                if let Store::Record(store) = &mut self.store {
                    store.delete(self.now);
                }
                self.hint(None);
            }
            Kind::FailOver => {
                self.store_changes();
                let seen = self.now.saturating_sub(lasts_ns.min(self.plan.options.ttl()));
                let clock = self.clocks[store];
                match &mut self.store {
                    Store::Record(store) => store.fail_over(seen),
                    Store::Queue(store) => store.change_leader(clock.boot(self.now), clock.boot(until)),
                    Store::Lease(_) => {}
                }
                self.hint(None);
            }
            // Of peers.
            Kind::CutLink | Kind::Split | Kind::SlowDisk => {}
        }
        if lasts {
            self.active_faults += 1;
            self.queue.push(until, Happening::FaultEnds { number, node });
        }
    }

    fn stop_unless_frozen(&mut self, node: usize, reason: StopReason) {
        if self.nodes[node].frozen_until <= self.now {
            self.input(node, Input::Stop(reason));
        }
    }

    fn store_away(&mut self, until: Nanos, down: bool) {
        self.store_away_until = until.max(self.store_away_until);
        self.store_is_down |= down;
    }

    /// A store that was down is there again.
    pub(super) fn store_returns(&mut self) {
        if !std::mem::take(&mut self.store_is_down) {
            return;
        }
        let now = self.clocks[self.store_index()].boot(self.now);
        match &mut self.store {
            Store::Lease(store) => store.restart(now),
            Store::Queue(store) => store.change_leader(now, now),
            Store::Record(_) => {}
        }
    }

    /// The store is about to change: it matters most to whoever is renewing.
    fn store_changes(&mut self) {
        let renews = |node: &crate::lease::candidate::Candidate| {
            node.running.as_ref().is_some_and(|running| matches!(running.call, Call::Renew(..)))
        };
        self.history.sometimes.change_during_renewal += u64::from(self.nodes.iter().any(renews));
    }

    pub(super) fn fault_ends(&mut self, number: usize, node: usize) {
        let kind = self.plan.faults[number].kind;
        self.active_faults -= 1;
        if kind == Kind::Freeze && self.nodes[node].frozen_until <= self.now {
            let woke_late = self.nodes[node].belief.is_some() && !self.believes(node);
            self.history.sometimes.woke_not_valid += u64::from(woke_late);
        }
        if self.healed {
            return;
        }
        self.note(40 + kind as u64, node);
        self.say(node, || format!("end of fault {number}: {kind:?}"));
        let store = self.store_index();
        match kind {
            Kind::CutOut => self.network.mend(node, store),
            Kind::CutIn => self.network.mend(store, node),
            Kind::CutBoth => {
                self.network.mend(node, store);
                self.network.mend(store, node);
            }
            Kind::Storm => self.network.weather = self.calm,
            _ => {}
        }
    }

    /// A random core is healthy from now on, and whoever is not of it stays broken: dead, frozen, or cut off in both
    /// directions. (A candidate whose requests arrive although it hears no answer keeps the election for itself for as long
    /// as that lasts, as far as the store can see with right.)
    pub(super) fn heal(&mut self) {
        self.healed = true;
        let candidates = self.nodes.len();
        let size = 1 + self.random.below(candidates as u64) as usize;
        self.core.fill(false);
        while self.core.iter().filter(|member| **member).count() < size {
            let member = self.random.below(candidates as u64) as usize;
            self.core[member] = true;
        }
        self.network.mend_all();
        let ttl = self.plan.options.ttl();
        self.network.weather = Weather {
            delay_max: self.calm.delay_max.min(self.calm.delay_min + ttl / 60),
            loss: 0,
            ..self.calm
        };
        self.store_away_until = self.now;
        self.store_returns();
        match &mut self.store {
            Store::Lease(store) => store.turn_honest(),
            Store::Record(store) => store.turn_honest(),
            Store::Queue(store) => store.turn_honest(),
        }
        let store = self.store_index();
        for node in 0..candidates {
            if self.core[node] {
                self.say(node, || "HEALED".to_owned());
                self.nodes[node].frozen_until = self.now;
                self.queue.push(self.now, Happening::Wake { node });
                self.nodes[node].wake_at = self.now;
                self.start(node);
                continue;
            }
            match self.random.below(3) {
                0 => self.crash(node),
                1 => self.nodes[node].frozen_until = Nanos::MAX,
                _ => {
                    self.network.cut(node, store);
                    self.network.cut(store, node);
                }
            }
            self.say(node, || "BROKEN".to_owned());
        }
    }
}
