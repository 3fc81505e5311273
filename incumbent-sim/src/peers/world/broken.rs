//! How each fault is done, and how it ends; the heal.

use super::*;
use crate::outcome::Illness;
use crate::plan::{Fault, Kind, Whom};

impl<P: Simulated> World<'_, P> {
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
        let illness = match kind {
            Kind::Crash => Some(Illness::Down),
            Kind::Freeze => Some(Illness::Frozen),
            Kind::CutOut | Kind::CutIn | Kind::CutBoth => Some(Illness::CutOff),
            _ => None,
        };
        if let Some(illness) = illness {
            self.history.painter.outage(node, self.now, until, illness);
            self.hit(node, until);
        }
        let mut lasts = true;
        match kind {
            Kind::Crash => {
                self.crash(node);
                let life = self.nodes[node].life;
                self.queue.push(until, Happening::Start { node, life });
                lasts = false;
            }
            Kind::Freeze => self.nodes[node].frozen_until = until.max(self.nodes[node].frozen_until),
            Kind::CutOut | Kind::CutIn | Kind::CutBoth | Kind::CutLink | Kind::Split => {
                self.count_side(kind, node, leader);
                if kind == Kind::Split {
                    let minority = self.minority(node, dice);
                    for member in &minority {
                        self.history.painter.outage(*member, self.now, until, Illness::Minority);
                        self.hit(*member, until);
                    }
                    self.splits.insert(number, minority);
                }
                for (from, to) in self.links(number, node) {
                    self.network.cut(from, to);
                }
            }
            Kind::ClogOut | Kind::ClogIn => {
                for other in 0..self.nodes.len() {
                    let (from, to) = if kind == Kind::ClogOut { (node, other) } else { (other, node) };
                    self.network.clog(from, to, until);
                }
                lasts = false;
            }
            Kind::Storm => {
                let ttl = self.plan.options.ttl();
                let delay_max = self.calm.delay_min + [50 * MS, ttl / 4, 3 * ttl][dice as usize % 3];
                self.network.weather = Weather { delay_max, loss: 300, ..self.calm };
            }
            Kind::SlowDisk => self.nodes[node].slow_until = until,
            Kind::Resign => {
                if self.nodes[node].frozen_until <= self.now {
                    let now = self.local(node);
                    if let Some(peer) = &mut self.nodes[node].peer {
                        peer.surrender(now, None).expect("nobody is named");
                        self.outputs(node);
                    }
                }
                lasts = false;
            }
            // Of candidates and stores.
            _ => lasts = false,
        }
        if lasts {
            self.active_faults += 1;
            self.queue.push(until, Happening::FaultEnds { number, node });
        }
    }

    /// From now until then others hear little of it.
    fn hit(&mut self, node: usize, until: Nanos) {
        if self.believes(node) {
            self.history.stopwatch.lost(self.now);
        }
        self.nodes[node].hit_until = until.max(self.nodes[node].hit_until);
    }

    /// Where the leader is, seen from a cut.
    fn count_side(&mut self, kind: Kind, node: usize, leader: Option<usize>) {
        match leader {
            Some(leader) if leader == node && kind != Kind::CutLink => {
                self.history.sometimes.leader_without_majority += 1;
            }
            Some(_) => self.history.sometimes.leader_with_majority += 1,
            None => {}
        }
    }

    /// The smaller group of a split, which `node` is in.
    fn minority(&self, node: usize, dice: u64) -> BTreeSet<usize> {
        let count = self.nodes.len();
        let size = 1 + dice as usize % (count / 2).max(1);
        (0..size.min(count)).map(|step| (node + step) % count).collect()
    }

    /// The directed links that a cut concerns.
    fn links(&self, number: usize, node: usize) -> Vec<(usize, usize)> {
        let Fault { kind, dice, .. } = self.plan.faults[number];
        let count = self.nodes.len();
        let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let minority = self.splits.get(&number);
        all.filter(|(from, to)| {
            from != to
                && match kind {
                    Kind::CutOut => *from == node,
                    Kind::CutIn => *to == node,
                    Kind::CutBoth => *from == node || *to == node,
                    Kind::CutLink => *from == node && *to == (node + 1 + dice as usize % count) % count,
                    Kind::Split => minority.is_some_and(|few| few.contains(from) != few.contains(to)),
                    _ => false,
                }
        })
        .collect()
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
        for (from, to) in self.links(number, node) {
            self.network.mend(from, to);
        }
        if kind == Kind::Storm {
            self.network.weather = self.calm;
        }
    }

    /// It is cut off from all others, or comes back.
    pub(super) fn flap(&mut self, node: usize) {
        let count = self.nodes.len();
        for other in (0..count).filter(|other| *other != node) {
            for (from, to) in [(node, other), (other, node)] {
                if self.network.is_cut(from, to) {
                    self.network.mend(from, to)
                } else {
                    self.network.cut(from, to)
                }
            }
        }
        let ttl = self.plan.options.ttl();
        self.queue.push(self.now + ttl / 2 + self.random.below(2 * ttl), Happening::Flap { node });
    }

    /// A random majority is healthy from now on; the others stay broken: dead, frozen, cut off in one direction or both, or they
    /// come and go. Where no majority decides all are healthy: whoever is half heard would be followed. Where the greatest peer
    /// takes over each time it is back, nobody comes and goes.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        let count = self.nodes.len();
        let size = match self.plan.options.majority {
            true => self.random.between(count as u64 / 2 + 1, count as u64) as usize,
            false => count,
        };
        self.core.fill(false);
        while self.core.iter().filter(|member| **member).count() < size {
            let member = self.random.below(count as u64) as usize;
            self.core[member] = true;
        }
        self.network.mend_all();
        let ttl = self.plan.options.ttl();
        self.network.weather = Weather {
            delay_max: self.calm.delay_max.min(self.calm.delay_min + ttl / 100),
            loss: 0,
            ..self.calm
        };
        self.slow_saves = 0;
        for node in 0..count {
            self.nodes[node].slow_until = 0;
            if self.core[node] {
                self.say(node, || "HEALED".to_owned());
                self.nodes[node].frozen_until = self.now;
                self.nodes[node].wake_at = self.now;
                self.queue.push(self.now, Happening::Wake { node });
                self.start(node);
                continue;
            }
            match self.random.below(6) {
                2 if !P::TAKES_OVER => self.queue.push(self.now, Happening::Flap { node }),
                0 | 2 => self.crash(node),
                1 => self.nodes[node].frozen_until = Nanos::MAX,
                side => {
                    for other in (0..count).filter(|other| *other != node) {
                        if side != 3 {
                            self.network.cut(node, other);
                        }
                        if side != 4 {
                            self.network.cut(other, node);
                        }
                    }
                }
            }
            self.say(node, || "BROKEN".to_owned());
        }
    }
}
