//! R6: no decision compares a remote wall clock with a local one.

use incumbent_core::Acquired;

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Outcome, Stage, ensure};

pub(super) const RULE: Rule =
    Rule { id: "R6", cases: &[case!(r6_steps_of_the_wall_clock_change_nothing, alone)] };

const HOUR: i64 = 3600;

/// An hour forth, two back, one forth: the leader leads, the challenger waits, and later tokens are greater.
async fn r6_steps_of_the_wall_clock_change_nothing(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, rival) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let grant = stage.win(&handle, &claim).await?;
    for step in [HOUR, -2 * HOUR, HOUR] {
        stage.hook(stage.harness.step_wall_clock(step)).await?;
        let until = now() + stage.ttl();
        let lead = stage.keep(&handle, &claim, &grant, until);
        let challenge = async {
            while now() < until {
                let answer = stage.answer(async || other.try_acquire(&rival).await).await?;
                ensure!(!matches!(answer, Acquired::Granted(_)), "a step of {step} s let another one in");
                tokio::time::sleep(stage.ttl() / 20).await;
            }
            Ok(())
        };
        tokio::try_join!(lead, challenge)?;
    }
    // The judge compares the tokens; each next term begins in an earlier hour.
    stage.release(&handle, &claim, Some(&grant)).await?;
    let grant = stage.win(&other, &rival).await?;
    stage.hook(stage.harness.step_wall_clock(-HOUR)).await?;
    stage.release(&other, &rival, Some(&grant)).await?;
    stage.win(&handle, &stage.claim(&election, "c")).await?;
    stage.hook(stage.harness.step_wall_clock(HOUR)).await
}
