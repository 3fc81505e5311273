//! The network between hosts: delay, loss, doubling, overtaking, clogs, and cuts in one direction or in both.

use crate::clock::Nanos;
use crate::random::Random;

/// What every message meets on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) delay_min: Nanos,
    pub(crate) delay_max: Nanos,
    /// So many messages in a thousand are lost.
    pub(crate) loss: u32,
    /// So many in a thousand come twice.
    pub(crate) doubled: u32,
}

/// All links. A link is one direction between two hosts.
#[derive(Debug)]
pub(crate) struct Network {
    hosts: usize,
    pub(crate) weather: Weather,
    /// How many faults cut the link: they may overlap.
    cuts: Vec<u16>,
    /// What is sent before this moment waits until then.
    clogged_until: Vec<Nanos>,
}

impl Network {
    pub(crate) fn new(hosts: usize, weather: Weather) -> Network {
        Network { hosts, weather, cuts: vec![0; hosts * hosts], clogged_until: vec![0; hosts * hosts] }
    }

    /// When a message that is sent now arrives: never, once or twice.
    pub(crate) fn deliveries(
        &self,
        random: &mut Random,
        now: Nanos,
        from: usize,
        to: usize,
    ) -> [Option<Nanos>; 2] {
        let link = from * self.hosts + to;
        let Weather { delay_min, delay_max, loss, doubled } = self.weather;
        if self.cuts[link] > 0 || random.per_mille(loss) {
            return [None, None];
        }
        let start = now.max(self.clogged_until[link]);
        let mut arrival = || start + delay_min + random.below(delay_max - delay_min + 1);
        let first = arrival();
        let again = doubled > 0 && random.per_mille(doubled);
        [Some(first), again.then(|| start + delay_min + random.below(4 * delay_max))]
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts[from * self.hosts + to] > 0
    }

    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.cuts[from * self.hosts + to] += 1;
    }

    pub(crate) fn mend(&mut self, from: usize, to: usize) {
        let cuts = &mut self.cuts[from * self.hosts + to];
        *cuts = cuts.saturating_sub(1);
    }

    pub(crate) fn clog(&mut self, from: usize, to: usize, until: Nanos) {
        let link = &mut self.clogged_until[from * self.hosts + to];
        *link = until.max(*link);
    }

    /// Nothing is cut or clogged any more.
    pub(crate) fn mend_all(&mut self) {
        self.cuts.fill(0);
        self.clogged_until.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEATHER: Weather = Weather { delay_min: 10, delay_max: 20, loss: 0, doubled: 0 };

    #[test]
    fn a_link_is_cut_in_its_direction_until_every_cut_is_mended() {
        let (mut network, mut random) = (Network::new(3, WEATHER), Random::new(1));
        let mut arrives = |network: &Network, from, to| network.deliveries(&mut random, 100, from, to)[0];
        network.cut(0, 1);
        network.cut(0, 1);
        assert_eq!(arrives(&network, 0, 1), None);
        assert!(arrives(&network, 1, 0).is_some() && arrives(&network, 0, 2).is_some());
        network.mend(0, 1);
        assert_eq!(arrives(&network, 0, 1), None);
        network.mend(0, 1);
        assert!((110..=120).contains(&arrives(&network, 0, 1).unwrap()));
    }

    #[test]
    fn what_meets_a_clog_comes_after_it() {
        let (mut network, mut random) = (Network::new(2, WEATHER), Random::new(1));
        network.clog(0, 1, 500);
        assert!(network.deliveries(&mut random, 100, 0, 1)[0] >= Some(510));
        assert!(network.deliveries(&mut random, 100, 1, 0)[0] <= Some(120));
        network.mend_all();
        assert!(network.deliveries(&mut random, 100, 0, 1)[0] <= Some(120));
    }

    #[test]
    fn messages_are_lost_and_doubled_as_often_as_said() {
        let weather = Weather { loss: 300, doubled: 200, ..WEATHER };
        let (network, mut random) = (Network::new(2, weather), Random::new(1));
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            counts[network.deliveries(&mut random, 0, 0, 1).iter().flatten().count()] += 1;
        }
        assert!((2_700..3_300).contains(&counts[0]) && (1_200..1_600).contains(&counts[2]), "{counts:?}");
    }
}
