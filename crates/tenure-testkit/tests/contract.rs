//! The suite tests itself: it is the contract word for word, every backend takes part, and a broken store is
//! caught.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken;

use std::collections::BTreeSet;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt as _;
use tenure::backends::memory::MemoryStore;
use tenure_testkit::{CASES, Case, Fixture, ManualClock, Store};
use tokio::task::JoinSet;

use crate::broken::{Broken, Defect};

fn tenure_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure/src")
}

/// The bullets of all `# Behaviour` sections of a source text. A bullet may go on over several lines.
fn behaviour_bullets(source: &str) -> Vec<String> {
    let mut bullets: Vec<String> = Vec::new();
    let mut inside = false;
    for line in source.lines().map(str::trim) {
        let Some(doc) = line.strip_prefix("///").map(str::trim) else {
            inside = false;
            continue;
        };
        if doc.starts_with('#') {
            inside = doc == "# Behaviour";
        } else if let Some(bullet) = doc.strip_prefix("- ").filter(|_| inside) {
            bullets.push(bullet.to_owned());
        } else if let Some(last) = bullets.last_mut().filter(|_| inside && !doc.is_empty()) {
            *last = format!("{last} {doc}");
        }
    }
    bullets
}

/// The text as the name of a function: `_` for every run of other characters than letters and digits.
fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_").to_ascii_lowercase()
}

#[test]
fn the_cases_are_the_behaviour_bullets_word_for_word() {
    let source = fs::read_to_string(tenure_sources().join("backend.rs")).unwrap();
    let bullets = behaviour_bullets(&source);
    assert!(bullets.len() > 40, "only {} bullets found: has the form of the lists changed?", bullets.len());
    let promised: BTreeSet<String> = bullets.iter().map(|bullet| slug(bullet)).collect();
    assert_eq!(promised.len(), bullets.len(), "two bullets say the same");
    let tested: BTreeSet<String> = CASES.iter().map(|case| case.name.to_owned()).collect();
    assert_eq!(tested.len(), CASES.len(), "a case is listed twice");
    let untested: Vec<_> = promised.difference(&tested).collect();
    let unpromised: Vec<_> = tested.difference(&promised).collect();
    assert!(untested.is_empty() && unpromised.is_empty(), "untested: {untested:#?}, unpromised: {unpromised:#?}");
}

#[test]
fn bullets_are_found_where_they_are_and_nowhere_else() {
    let source = "/// - not this\n/// # Behaviour\n///\n/// - a re-entered\n///   thing, twice\n/// - B\n/// # Errors\n/// - nor this\nfn x();";
    let bullets = behaviour_bullets(source);
    assert_eq!(bullets, ["a re-entered thing, twice", "B"]);
    assert_eq!(slug(&bullets[0]), "a_re_entered_thing_twice");
}

#[test]
fn every_backend_runs_the_suite() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let suite = fs::read_to_string(tests.join("conformance.rs")).unwrap();
    let waiters = fs::read_to_string(tests.join("waiters.rs")).unwrap();
    let mut backends = 0;
    for entry in fs::read_dir(tenure_sources().join("backends")).unwrap() {
        let path = entry.unwrap().path();
        let backend = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let is_backend = path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
        // What they share is none.
        if ["kit", "mod"].contains(&backend.as_str()) || !is_backend {
            continue;
        }
        backends += 1;
        let takes_part = suite.lines().any(|line| line.contains(&format!("conformance!({backend},")));
        assert!(takes_part, "tests/conformance.rs lacks conformance!({backend}, …)");
        let has_waiters = waiters.lines().any(|line| line.contains(&format!("waiters!({backend},")));
        assert!(has_waiters, "tests/waiters.rs lacks waiters!({backend}, …)");
    }
    assert!(backends >= 2, "only {backends} backends found");
}

/// What a Redis user needs is documented, and tested with nothing more.
#[test]
fn the_rights_that_are_documented_are_those_that_are_tested() {
    use tenure_testkit::servers::shared::{ACL_RULES, FLEET_ACL_RULES};
    let sorted = |text: &str| {
        let words = text.split_whitespace().filter(|word| *word != "\\");
        let mut words: Vec<String> = words.map(|word| word.trim_matches('\'').to_owned()).collect();
        words.sort();
        words
    };
    for (page, rules) in [("redis.md", ACL_RULES), ("redlock.md", FLEET_ACL_RULES)] {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backends").join(page);
        let page = fs::read_to_string(page).unwrap();
        let (_, rest) = page.split_once("ACL SETUSER locker on '>SECRET' ").unwrap();
        let (documented, _) = rest.split_once("```").unwrap();
        assert_eq!(sorted(documented), sorted(rules));
    }
}

/// Runs every case over memory with one defect; the names of the cases that fail.
async fn caught(defect: Defect) -> Vec<&'static str> {
    failing(|| {
        let clock = ManualClock::new();
        let store = MemoryStore::on(Arc::new(clock.clone()));
        Store::on(&clock, move || {
            let client = Broken::new(Arc::new(store.client()), defect);
            async { Ok(client) }
        })
    })
    .await
}

/// Runs every case, side by side, each on a new store; the names of those that fail.
async fn failing(new_store: impl Fn() -> Store) -> Vec<&'static str> {
    let mut running = JoinSet::new();
    for Case { name, run } in CASES {
        let store = new_store();
        running.spawn(async move {
            let fixture = Fixture::new(store);
            let passed = AssertUnwindSafe(run(&fixture)).catch_unwind().await.is_ok();
            (!passed).then_some(*name)
        });
    }
    running.join_all().await.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_store_without_a_defect_passes() {
    assert_eq!(caught(Defect::None).await, Vec::<&str>::new());
}

/// Stores with a clock of their own are tested in real time: so is the suite's way to do that.
#[tokio::test]
async fn the_suite_also_runs_in_real_time() {
    let failed = failing(|| {
        let store = MemoryStore::new();
        Store::in_real_time(move || {
            let client = store.client();
            async { Ok(client) }
        })
    });
    assert_eq!(failed.await, Vec::<&str>::new());
}

/// Each defect, and a case that must be among those that catch it.
#[tokio::test]
async fn every_defect_is_caught_by_the_case_that_names_it() {
    let defects = [
        (Defect::GrantsWhatIsBusy, "a_held_name_is_busy_for_a_claim_that_does_not_wait"),
        (Defect::TellsNobody, "a_release_grants_the_next_claim_and_its_client_hears_of_it"),
        (Defect::SaysReleasedOnly, "a_re_entered_holding_ends_with_its_last_claim"),
        (Defect::ReusesTokens, "tokens_strictly_increase_from_holder_to_holder"),
        (Defect::ReleasesAnyNumber, "a_release_with_another_number_changes_nothing"),
        (Defect::ReleasesHolders, "a_release_of_a_waiting_claim_only_leaves_one_that_holds"),
        (Defect::BreaksLaterHolders, "a_break_up_to_a_token_leaves_who_was_granted_after_it"),
        (Defect::BreaksHoldersForWaiters, "a_break_of_a_waiter_leaves_one_that_holds_and_one_with_another_number"),
        (Defect::LeavesOutWaitedFor, "names_that_somebody_waits_for_are_found_among_others"),
        (Defect::ForgetsWithin, "inspect_tells_what_a_claim_runs_within"),
        (Defect::PutsBackOnRenewal, "a_renewal_of_a_claim_the_store_lacks_answers_gone_and_puts_nothing_back"),
        (Defect::ShortensTtl, "a_shorter_ttl_keeps_the_longer_one"),
        (Defect::RenewsAnyNumber, "a_renewal_that_names_another_number_changes_nothing"),
        (Defect::BlocksOfOne, "a_block_reserves_tokens_that_nobody_else_is_given"),
        (Defect::ForgetsWhoBroke, "a_broken_holder_is_told_who_and_why"),
        (Defect::ScansCarelessly, "a_scan_lists_names_in_use_by_prefix_in_pages"),
        (Defect::MemoOverAnyVersion, "a_late_copy_of_a_memo_write_changes_nothing"),
        (Defect::MemoTwice, "the_same_memo_write_again_is_one_write"),
        (Defect::MemoByAnybody, "a_waiter_and_a_stranger_write_no_memo"),
    ];
    // Side by side, since some defects let the cases wait until their patience is over.
    let all = futures_util::future::join_all(defects.map(|(defect, _)| caught(defect))).await;
    for ((defect, case), caught) in defects.into_iter().zip(all) {
        assert!(caught.contains(&case), "{defect:?} was caught by {caught:?}, not by {case}");
    }
}
