//! What the harnesses of stores with members share, who elect one among themselves.

use std::path::PathBuf;

use incumbent_conformance::Hook;

use crate::served::{Served, back_up};

/// Servers that are members of one store.
pub(crate) trait Cluster: Send + 'static {
    fn members(&self) -> usize;
    fn leader_index(&self) -> usize;
    fn stop(&mut self, i: usize);
    fn kill(&mut self, i: usize);
    fn launch(&mut self, i: usize);
    fn restart(&mut self, i: usize);
    fn wait_ready(&mut self);
    /// Where the first keeps its data.
    fn data(&self) -> PathBuf;
}

/// Kills all members and starts them again on their data.
pub(crate) fn restart<C: Cluster>(served: &Served<C>) -> Hook<'static> {
    served.by_hand(|running| {
        let mut cluster = running.servers();
        let members = cluster.members();
        (0..members).for_each(|i| cluster.kill(i));
        (0..members).for_each(|i| cluster.launch(i));
        cluster.wait_ready();
    })
}

/// Kills the leading member; it is back when another leads.
pub(crate) fn fail_over<C: Cluster>(served: &Served<C>) -> Hook<'static> {
    if served.running().servers().members() == 1 {
        return Err("one member has nobody to fail over to");
    }
    served.by_hand(|running| {
        let mut cluster = running.servers();
        let leader = cluster.leader_index();
        cluster.kill(leader);
        assert_ne!(cluster.leader_index(), leader);
        cluster.restart(leader);
    })
}

/// Keeps a copy of all data, or puts it back.
pub(crate) fn back_up_all<C: Cluster>(served: &Served<C>, put_back: bool) -> Hook<'static> {
    if served.running().servers().members() > 1 {
        return Err("an old copy on one member of three is brought up to date by the others");
    }
    served.by_hand(move |running| {
        let mut cluster = running.servers();
        cluster.stop(0);
        back_up(&cluster.data(), put_back);
        cluster.restart(0);
    })
}
