//! R7: identity is (id, nonce): two processes with one id exclude each other, and the collision is reported.

use incumbent_core::Acquired;

use super::{Rule, case};
use crate::stage::{Outcome, Stage, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R7",
    cases: &[
        case!(r7_two_processes_with_one_id_exclude_each_other),
        case!(r7_so_do_two_candidates_of_one_process),
    ],
};

/// And each can see that it has a twin: same id, another nonce.
async fn r7_two_processes_with_one_id_exclude_each_other(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, twin) = (stage.claim(&election, "a"), stage.claim(&election, "a"));
    let grant = stage.win(&handle, &claim).await?;
    let seen = stage.must_not_win(&other, &twin).await?;
    let leader = seen.leader.as_ref();
    let collision = leader.is_some_and(|leader| {
        leader.contender.id == twin.id.as_str() && leader.contender.nonce == Some(claim.nonce)
    });
    ensure!(collision, "the twin cannot see that another campaign leads under its id: {seen:?}");
    stage.must_extend(&handle, &claim, &grant).await?;
    stage.release(&handle, &claim, Some(&grant)).await?;
    stage.win(&other, &twin).await?;
    Ok(())
}

/// A backend may refuse the second one, but not let both in.
async fn r7_so_do_two_candidates_of_one_process(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let (claim, twin) = (stage.claim(&election, "a"), stage.claim(&election, "a"));
    let grant = stage.win(&handle, &claim).await?;
    for _ in 0..3 {
        let answer = handle.try_acquire(&twin).await;
        ensure!(!matches!(answer, Ok(Acquired::Granted(_))), "both won: {answer:?}");
        stage.must_extend(&handle, &claim, &grant).await?;
    }
    Ok(())
}
