//! R2: tokens rise strictly from grant to grant: over release, expiry, deletion of the record, restart of the server and,
//! where exclusion is by consensus, failover of the store, within the declared conditions; a renewal keeps its token.

use std::time::Duration;

use futures_util::future::try_join_all;
use incumbent_core::guarantees::Exclusion;
use incumbent_core::{Claim, FencingToken, Grant, Renewed};

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Handle, Outcome, Stage, Stop, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R2",
    cases: &[
        case!(r2_tokens_rise_over_release),
        case!(r2_tokens_rise_over_expiry),
        case!(r2_tokens_rise_over_deletion_of_the_record),
        case!(r2_a_renewal_keeps_its_token),
        case!(r2_tokens_rise_over_a_restart_of_the_store, alone),
        case!(r2_tokens_rise_over_a_failover_of_the_store, alone),
        case!(r2_tokens_rise_over_a_failover_that_loses_a_grant, alone),
    ],
};

fn token(grant: &Grant) -> Outcome<FencingToken> {
    let text = "a grant has no token although the backend declares tokens";
    grant.token.ok_or_else(|| Stop::Failed(text.to_owned()))
}

fn rises(before: &Grant, after: &Grant) -> Outcome {
    ensure!(before.authority == after.authority, "the authority changed: {before:?}, then {after:?}");
    let (before, after) = (token(before)?, token(after)?);
    ensure!(before < after, "token {after} came after {before}");
    Ok(())
}

/// By turns on two connections.
async fn r2_tokens_rise_over_release(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    let election = stage.election();
    let handles = stage.open_many(2).await?;
    let mut last: Option<Grant> = None;
    for i in 0..6 {
        let (handle, claim) = (&handles[i % 2], stage.claim(&election, &format!("c{i}")));
        let grant = stage.win(handle, &claim).await?;
        if let Some(last) = &last {
            rises(last, &grant)?;
        }
        stage.release(handle, &claim, Some(&grant)).await?;
        last = Some(grant);
    }
    Ok(())
}

/// The old leader has gone silent and comes back as a new campaign.
async fn r2_tokens_rise_over_expiry(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    let election = stage.election();
    let handles = stage.open_many(2).await?;
    let first = stage.win(&handles[0], &stage.claim(&election, "a")).await?;
    let second = stage.win(&handles[1], &stage.claim(&election, "b")).await?;
    rises(&first, &second)?;
    let third = stage.win(&handles[0], &stage.claim(&election, "a")).await?;
    rises(&second, &third)
}

/// What the record itself counts would begin again.
async fn r2_tokens_rise_over_deletion_of_the_record(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    let election = stage.election();
    let handles = stage.open_many(2).await?;
    let claim = stage.claim(&election, "a");
    let mut last = stage.win(&handles[0], &claim).await?;
    for i in 0..3 {
        stage.removal(Some(&election), stage.harness.delete(&election)).await?;
        let grant = stage.win(&handles[1], &stage.claim(&election, &format!("c{i}"))).await?;
        rises(&last, &grant)?;
        last = grant;
    }
    Ok(())
}

/// As the grant says and as everyone sees it.
async fn r2_a_renewal_keeps_its_token(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    let election = stage.election();
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    token(&grant)?;
    for _ in 0..4 {
        stage.must_extend(&handle, &claim, &grant).await?;
        let shown = stage.observe(&other, &election).await?.leader.and_then(|leader| leader.token);
        ensure!(shown == grant.token, "after a renewal of {:?} the store shows {shown:?}", grant.token);
        tokio::time::sleep(stage.ttl() / 5).await;
    }
    Ok(())
}

/// And a grant outlives it, if it is renewed in time.
async fn r2_tokens_rise_over_a_restart_of_the_store(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    if !stage.guarantees.survives.crash {
        return Err(Stop::NotApplicable(
            "the backend declares that no grant survives a crash of the store".to_owned(),
        ));
    }
    let election = stage.election();
    let (handle, claim) = (stage.open().await?, stage.claim(&election, "a"));
    let grant = stage.win(&handle, &claim).await?;
    stage.hook(stage.harness.restart()).await?;
    goes_on(stage, &handle, &claim, &grant).await
}

/// As over a restart.
async fn r2_tokens_rise_over_a_failover_of_the_store(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    if stage.guarantees.exclusion != Exclusion::Consensus || !stage.guarantees.survives.failover {
        let text = "the backend declares no order of tokens over a failover of the store";
        return Err(Stop::NotApplicable(text.to_owned()));
    }
    let election = stage.election();
    let (handle, claim) = (stage.open().await?, stage.claim(&election, "a"));
    let grant = stage.win(&handle, &claim).await?;
    stage.hook(stage.harness.fail_over()).await?;
    goes_on(stage, &handle, &claim, &grant).await
}

/// Exclusion is not what such a store promises then: but the term ends as soon as its leader asks, and the order of tokens holds.
async fn r2_tokens_rise_over_a_failover_that_loses_a_grant(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    if stage.guarantees.exclusion != Exclusion::AsyncReplicated {
        let text = "the backend declares that it replicates nothing later than it acknowledges it";
        return Err(Stop::NotApplicable(text.to_owned()));
    }
    // One campaign leads when the replica is cut off and renews, one wins afterwards, one wins what another had before.
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let elections = [(); 3].map(|()| stage.election());
    let [renewed, won, taken] = [0, 1, 2].map(|i| stage.claim(&elections[i], "a"));
    let first = stage.win(&handle, &renewed).await?;
    let earlier = stage.claim(&elections[2], "earlier");
    let before = stage.win(&handle, &earlier).await?;
    stage.release(&handle, &earlier, Some(&before)).await?;
    stage.hook(stage.harness.lose_writes(false)).await?;
    let grants = [
        (&renewed, first),
        (&won, stage.win(&handle, &won).await?),
        (&taken, stage.win(&handle, &taken).await?),
    ];
    tokio::time::sleep(stage.ttl() / 4).await;
    for (claim, grant) in &grants {
        stage.must_extend(&handle, claim, grant).await?;
    }
    stage.removal(None, stage.harness.lose_writes(true)).await?;
    let promoted_at = now();
    for (claim, grant) in &grants {
        // A former leader of the store may refuse a few times.
        while !matches!(handle.renew(claim, grant).await, Ok(Renewed::Lost(_))) {
            let in_time = now() < promoted_at + stage.takeover();
            ensure!(in_time, "the grant {grant:?} of {} outlives the loss of what was written", claim.id);
            tokio::time::sleep(stage.ttl() / 20).await;
        }
    }
    try_join_all(grants.iter().map(async |(claim, grant)| {
        let next = stage.win(&other, &stage.claim(&claim.election, "b")).await?;
        rises(grant, &next)
    }))
    .await?;
    Ok(())
}

/// The leader meets the store again: it still leads or has lost, and the next one's token is greater.
async fn goes_on(stage: &Stage, handle: &Handle, claim: &Claim, grant: &Grant) -> Outcome {
    let end = now() + stage.takeover() + Duration::from_secs(10);
    loop {
        match handle.renew(claim, grant).await {
            Ok(Renewed::Extended { .. } | Renewed::Lost(_)) => break,
            Err(error) => ensure!(now() < end, "the store does not come back: {error:?}"),
        }
        tokio::time::sleep(stage.ttl() / 20).await;
    }
    stage.release(handle, claim, Some(grant)).await?;
    let other = stage.open().await?;
    let next = stage.win(&other, &stage.claim(&claim.election, "b")).await?;
    rises(grant, &next)
}
