//! Known bugs put back, one by one, around a backend that is right: the suite must find each, or it proves nothing.

mod mutated;

use std::sync::Arc;
use std::time::Duration;

use incumbent::Settings;
use incumbent_conformance::{Harness, Suite};
use incumbent_core::{Backend, BoxFuture, Result};

use mutated::{Bug, Mutated};

struct Mutant {
    bug: Option<Bug>,
}

impl Harness for Mutant {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async {
            let settings = Settings { ttl: self.ttl(), ..Settings::default() };
            let right = incumbent::backend::factory("memory:mutants", &settings)?()?;
            Ok(match self.bug {
                Some(bug) => Arc::new(Mutated::new(right, bug)),
                None => right,
            })
        })
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(500)
    }
}

/// Runs one case on a backend with `bug`, and on one without.
#[track_caller]
fn caught(bug: Bug, case: &str, because: &str) {
    let run = |bug| {
        let suite = Suite::new(Mutant { bug }).only(case).exact().terms(500);
        suite.run().expect("the suite runs")
    };
    let report = run(Some(bug));
    let reasons: Vec<&str> = report.failures().map(|(_, reason)| reason).collect();
    assert!(
        reasons.iter().any(|reason| reason.contains(because)),
        "{case} does not say {because:?} of {bug:?}, but: {report}"
    );
    let report = run(None);
    assert!(report.is_ok(), "{case} fails without any bug: {report}");
}

#[test]
fn the_deadline_counts_from_the_answer() {
    caught(Bug::DeadlineFromAnswer, "r1_a_renewal_excludes_others_for_another_ttl", "R1 is broken");
}

#[test]
fn a_read_counts_as_a_renewal() {
    caught(Bug::RenewedByRead, "r1_a_renewal_excludes_others_for_another_ttl", "R1 is broken");
}

#[test]
fn a_keep_alive_counts_as_a_renewal() {
    caught(Bug::RenewedByKeepAlive, "r3_no_extension_once_another_leads", "was extended");
}

#[test]
fn a_read_counts_as_a_grant() {
    let case = "r4_an_adopted_grant_excludes_others_for_a_ttl_from_its_own_proof";
    caught(Bug::AdoptedByRead, case, "R1 is broken");
}

#[test]
fn a_grant_is_adopted_by_the_id_alone() {
    caught(Bug::AdoptedById, "r4_a_new_campaign_never_adopts_the_grant_of_an_old_one", "R2 is broken");
    caught(Bug::AdoptedById, "r7_two_processes_with_one_id_exclude_each_other", "although it must not");
}

#[test]
fn a_lost_grant_is_superseded_instead_of_adopted() {
    caught(Bug::NeverAdopts, "r4_adopts_a_grant_whose_answer_was_lost", "not told so");
}

#[test]
fn the_lease_is_judged_early() {
    caught(Bug::LeaseTooShort, "r1_an_unrenewed_grant_excludes_others_for_its_whole_ttl", "R1 is broken");
}

#[test]
fn a_release_compares_nothing() {
    caught(Bug::ReleasesAnyone, "r5_an_ended_campaign_releases_nothing_of_its_successor", "lost its grant");
    caught(Bug::ReleasesAnyone, "r5_another_campaign_of_the_same_id_releases_nothing", "lost its grant");
}

#[test]
fn a_release_does_nothing() {
    caught(
        Bug::NeverReleases,
        "r5_a_release_lets_the_next_one_in_at_once",
        "shows the leader after its release",
    );
}

#[test]
fn a_release_needs_the_grant() {
    let case = "r5_a_release_without_a_grant_removes_a_grant_whose_answer_was_lost";
    caught(Bug::ReleasesOnlyWhatItKnows, case, "shows the leader after its release");
}

#[test]
fn an_observer_shows_what_it_has_kept() {
    caught(Bug::ObservesTheOld, "r9_observe_never_goes_back_while_terms_pass", "R9 is broken");
}

#[test]
fn tokens_are_counted_by_each_connection() {
    caught(Bug::TokensOfTheConnection, "r2_tokens_rise_over_release", "token");
}

#[test]
fn a_dropped_call_goes_on_in_the_background() {
    let case = "r8_a_dropped_acquire_leaves_nothing_after_the_ttl";
    caught(Bug::ContendsInTheBackground, case, "did not win");
}

#[test]
fn a_renewal_goes_on_in_the_background() {
    let case = "r8_an_abandoned_grant_ends_although_its_connection_lives";
    caught(Bug::RenewsWhatNobodyAsksFor, case, "did not win");
}

#[test]
fn nobody_is_told() {
    caught(Bug::Deaf, "r10_a_release_is_hinted", "no release gave a hint");
}

#[test]
fn those_who_wait_are_sent_away_for_ever() {
    caught(Bug::NeverTriesAgain, "r10_a_silent_leader_is_followed_without_any_hint", "did not win");
}

#[test]
fn those_who_wait_run_in_circles() {
    caught(Bug::TriesAgainAtOnce, "h_candidates_that_wait_are_quiet", "was made to try");
}

#[test]
fn a_leader_is_woken_by_its_own_renewals() {
    caught(Bug::HintsOfOneself, "h_candidates_that_wait_are_quiet", "hints in");
}

#[test]
fn campaigns_are_kept_for_ever() {
    caught(Bug::Leaks, "h_many_terms_leave_nothing_behind", "let the process grow");
}

#[test]
fn the_process_grows_with_the_number_of_elections() {
    caught(Bug::RemembersElections, "h_many_elections_leave_nothing_behind", "let the process grow");
}

#[test]
fn the_next_leader_is_not_the_one_that_was_named() {
    caught(Bug::ForgetsWhoIsNext, "handover_the_candidate_that_is_named_wins", "won, not");
}

#[test]
fn a_note_is_written_over_a_newer_one() {
    caught(Bug::NotesCompareNothing, "notes_a_stale_writer_changes_nothing", "created over another");
    caught(Bug::NotesCompareNothing, "notes_no_increment_is_lost", "increments");
}

#[test]
fn a_write_of_a_note_goes_on_when_nobody_waits_for_it() {
    caught(
        Bug::WritesNotesInTheBackground,
        "r8_a_dropped_write_of_a_note_is_done_or_not",
        "a dropped write left neither",
    );
}
