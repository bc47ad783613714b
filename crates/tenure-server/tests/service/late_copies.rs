//! Copies of requests that arrive late, requests that were left, and callers that use what is not theirs: none of them
//! ends or takes what another was told it has.

use std::time::Duration;

use serde_json::json;
use tenure_server::Right;
use tokio::time::{sleep, timeout};

use crate::support::{Client, Look, PATIENCE, TokenFile, and, instance, instance_with, name, over, wish};

/// Of claims that are there from the beginning of a test to its end, on a machine that is far too busy.
const TTL: u64 = 20_000;
/// Of claims that wait: how often they are renewed, and so hear of the other instance, follows from it.
const WAITING: u64 = 4_000;

over!(a_copy_of_a_release_after_the_next_acquire_ends_nothing: redis, etcd, zookeeper);

async fn a_copy_of_a_release_after_the_next_acquire_ends_nothing(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let (name, owner) = (name("copy"), "worker");

    // With a claim of its own for each attempt.
    a.acquire(wish(&name, owner, TTL)).await.is(200);
    let copy = json!({ "name": name, "owner": owner, "claim": "1" });
    a.release(copy.clone()).await.is(200);
    let next = a.acquire(and(wish(&name, owner, TTL), json!({ "claim": "2" }))).await.is(200);
    for instance in [&a, &b] {
        instance.release(copy.clone()).await.tells_problem(410, "gone");
        assert_eq!(look.tokens(&name).await, [next.token()]);
    }
    a.release(json!({ "name": name, "owner": owner, "claim": "2" })).await.is(200);

    // Without: by the token, or by the number.
    let unnamed = json!({ "name": name, "owner": owner, "ttl_ms": TTL });
    let first = a.acquire(unnamed.clone()).await.is(200);
    let by_token = json!({ "name": name, "owner": owner, "token": first.token() });
    let by_number = json!({ "name": name, "owner": owner, "number": first.number() });
    a.release(by_token.clone()).await.is(200);
    let next = b.acquire(unnamed).await.is(200);
    for instance in [&a, &b] {
        instance.release(by_token.clone()).await.tells_problem(410, "gone");
        instance.release(by_number.clone()).await.tells_problem(410, "gone");
        assert_eq!(look.tokens(&name).await, [next.token()]);
    }

    // Neither is no way to say which.
    let which = a.release(json!({ "name": name, "owner": owner })).await.tells_problem(400, "invalid");
    assert_eq!(which.json()["field"], "token");
    assert_eq!(look.tokens(&name).await, [next.token()]);
    b.release(json!({ "name": name, "owner": owner, "number": next.number() })).await.is(200);
    assert_eq!(look.counts(&name).await, (0, 0));
}

over!(a_copy_of_an_acquire_that_names_its_claim_begins_no_other: redis, etcd, zookeeper);

async fn a_copy_of_an_acquire_that_names_its_claim_begins_no_other(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("copy");
    let held = a.acquire(wish(&name, "worker", TTL)).await.is(200);
    let copy = and(wish(&name, "worker", TTL), json!({ "number": held.number() }));
    a.acquire(copy.clone()).await.is(200);
    a.release(json!({ "name": name, "owner": "worker", "claim": "1" })).await.is(200);
    for instance in [&a, &b] {
        instance.acquire(copy.clone()).await.tells_problem(410, "gone");
        assert_eq!(look.counts(&name).await, (0, 0));
    }
}

over!(an_acquire_that_was_left_does_not_end_what_another_instance_reported: redis, etcd, zookeeper);

async fn an_acquire_that_was_left_does_not_end_what_another_instance_reported(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("left");
    a.acquire(wish(&name, "holder", TTL)).await.is(200);

    // Its caller has gone without a word: nobody reads this connection, and nobody closes it.
    let left = a.acquiring(and(wish(&name, "worker", WAITING), json!({ "wait_ms": 4_000 }))).await;
    look.until(&name, (1, 1)).await;
    let again = b.acquiring(and(wish(&name, "worker", WAITING), json!({ "wait_ms": 50_000 }))).await;
    // Not before the other instance has taken it over: then it is granted there.
    let mut left = left;
    left.next_reply().await.tells_problem(409, "superseded");
    assert_eq!(look.counts(&name).await, (1, 1));
    a.release(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    let held = again.reply().await.is(200);
    assert_eq!(look.tokens(&name).await, [held.token()]);

    // Nor when it goes, with whatever noise.
    left.reset();
    let renewed = b.renew(json!({ "name": name, "owner": "worker", "claim": "1" })).await.is(200).json();
    assert_eq!((&renewed["state"], renewed["token"].as_u64()), (&json!("held"), Some(held.token())));
}

over!(an_acquire_whose_wait_ends_after_it_was_taken_over_ends_nothing: redis, etcd, zookeeper);

async fn an_acquire_whose_wait_ends_after_it_was_taken_over_ends_nothing(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("over");
    a.acquire(wish(&name, "holder", TTL)).await.is(200);
    let short = a.acquiring(and(wish(&name, "worker", WAITING), json!({ "wait_ms": 4_000 }))).await;
    look.until(&name, (1, 1)).await;
    let long = b.acquiring(and(wish(&name, "worker", WAITING), json!({ "wait_ms": 50_000 }))).await;
    short.reply().await.tells_problem(409, "superseded");
    assert_eq!(look.counts(&name).await, (1, 1), "the place is there");
    a.release(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    long.reply().await.is(200);
    assert_eq!(look.counts(&name).await, (1, 0));
}

over!(a_wait_that_is_over_before_it_hears_of_the_other_instance_ends_nothing: redis, etcd, zookeeper);

async fn a_wait_that_is_over_before_it_hears_of_the_other_instance_ends_nothing(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    for granted in [false, true] {
        let mut done = false;
        // Where the machine is so busy that the other instance comes late, there was nothing to hear of.
        for _ in 0..5 {
            if !done {
                done = wait_is_over_unheard(&a, &b, &look, granted).await;
            }
        }
        assert!(done, "the second request always came after the wait of the first was over");
    }
}

/// The wait at A ends after B has taken the claim over, and before the renewal that would tell A so, which comes after
/// four seconds at the soonest. By then B waits, or holds. False if the wait was over before B came.
async fn wait_is_over_unheard(a: &Client, b: &Client, look: &Look, granted: bool) -> bool {
    let name = name("unheard");
    a.acquire(wish(&name, "holder", 120_000)).await.is(200);
    let short = a.acquiring(and(wish(&name, "worker", TTL), json!({ "wait_ms": 3_000 }))).await;
    look.until(&name, (1, 1)).await;
    let before = look.view(&name).await.waiters[0].claim.1;
    let long = b.acquiring(and(wish(&name, "worker", TTL), json!({ "wait_ms": 50_000 }))).await;
    let taken_over = async {
        while look.view(&name).await.waiters.iter().any(|waiter| waiter.claim.1 == before) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, taken_over).await.expect("the claim is taken over, or ends");
    let release = json!({ "name": name, "owner": "holder", "claim": "1" });
    let mut long = Some(long);
    let mut held = None;
    if granted {
        b.release(release.clone()).await.is(200);
        if let Some(long) = long.take() {
            held = Some(long.reply().await.is(200).token());
        }
    }
    let over = short.reply().await;
    if over.status == 409 && over.json()["kind"] == "timeout" {
        return false;
    }
    over.tells_problem(409, "superseded");
    if let Some(long) = long {
        assert_eq!(look.counts(&name).await, (1, 1), "the place is there");
        b.release(release).await.is(200);
        held = Some(long.reply().await.is(200).token());
    }
    let renewed = b.renew(json!({ "name": name, "owner": "worker", "claim": "1" })).await.is(200).json();
    assert_eq!((&renewed["state"], renewed["token"].as_u64()), (&json!("held"), held));
    true
}

over!(two_instances_never_take_a_claim_back_from_each_other: redis, etcd, zookeeper);

async fn two_instances_never_take_a_claim_back_from_each_other(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("both");
    let holder = a.acquire(wish(&name, "holder", TTL)).await.is(200);
    let waits = and(wish(&name, "worker", WAITING), json!({ "wait_ms": 50_000 }));

    let at_a = a.acquiring(waits.clone()).await;
    look.until(&name, (1, 1)).await;
    let at_b = b.acquiring(waits.clone()).await;
    at_a.reply().await.tells_problem(409, "superseded");
    assert_eq!(look.counts(&name).await, (1, 1), "the loser has changed nothing");
    let mut at_b = at_b;
    assert!(at_b.is_silent_for(Duration::from_millis(200)).await, "the winner waits on");

    // And the other way round.
    let at_a = a.acquiring(waits.clone()).await;
    at_b.next_reply().await.tells_problem(409, "superseded");
    assert_eq!(look.counts(&name).await, (1, 1));

    // Within one instance as well.
    let again = a.acquiring(waits.clone()).await;
    at_a.reply().await.tells_problem(409, "superseded");
    assert_eq!(look.counts(&name).await, (1, 1));

    b.release(json!({ "name": name, "owner": "holder", "token": holder.token(), "claim": "1" })).await.is(200);
    let mut held = again.reply().await;
    for _ in 0..5 {
        // Where claims move between sessions the store may not be sure at once: then the caller repeats it.
        if held.status == 503 {
            held = a.acquire(waits.clone()).await;
        }
    }
    let held = held.is(200);
    assert!(held.token() > holder.token());
    assert_eq!(look.tokens(&name).await, [held.token()]);
}

over!(one_owner_and_claim_for_two_names_are_two_claims: redis, etcd, zookeeper);

async fn one_owner_and_claim_for_two_names_are_two_claims(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let (one, two) = (name("one"), name("two"));
    a.acquire(wish(&one, "worker", TTL)).await.is(200);
    let second = b.acquire(wish(&two, "worker", TTL)).await.is(200);
    a.release(json!({ "name": one, "owner": "worker", "claim": "1" })).await.is(200);
    assert_eq!(look.counts(&one).await, (0, 0));
    assert_eq!(look.tokens(&two).await, [second.token()]);
    a.release(json!({ "name": one, "owner": "worker", "claim": "1" })).await.tells_problem(410, "gone");
    b.renew(json!({ "name": two, "owner": "worker", "claim": "1" })).await.is(200);
}

over!(what_another_user_guesses_is_nobody: redis, etcd, zookeeper);

async fn what_another_user_guesses_is_nobody(store: String) {
    let file = TokenFile::of(&[("alice", &Right::ALL, &[]), ("bob", &Right::ALL, &[])]);
    let here = instance_with(&store, |options| options.tokens = Some(file.path.clone())).await;
    let there = instance_with(&store, |options| options.tokens = Some(file.path.clone())).await;
    let alice = here.with(file.secret("alice"));
    let look = Look::at(&store).await;
    let name = name("guessed");
    let held = alice.acquire(wish(&name, "worker", TTL)).await.is(200).json();
    let shown = held["shown"].as_str().unwrap();
    let (token, number) = (&held["token"], &held["number"]);

    // Neither the owner as alice has it, nor as others see it.
    for (at, owner) in [(&here, "worker"), (&here, shown), (&there, "worker"), (&there, shown)] {
        let bob = at.with(file.secret("bob"));
        let claim = json!({ "name": name, "owner": owner, "claim": "1" });
        bob.release(claim.clone()).await.tells_problem(410, "gone");
        bob.release(and(claim.clone(), json!({ "token": token }))).await.tells_problem(410, "gone");
        bob.release(and(claim.clone(), json!({ "number": number }))).await.tells_problem(410, "gone");
        bob.renew(claim).await.tells_problem(410, "lost");
        bob.acquire(wish(&name, owner, TTL)).await.tells_problem(409, "busy");
        bob.acquire(and(wish(&name, owner, TTL), json!({ "reenter": token }))).await.tells_problem(409, "not_held");
        bob.acquire(and(wish(&name, owner, TTL), json!({ "number": number }))).await.tells_problem(410, "gone");
        assert_eq!(look.tokens(&name).await, [token.as_u64().unwrap()]);
    }
    // What is alice's own does all of that, at the other instance too.
    let alice = there.with(file.secret("alice"));
    alice.renew(json!({ "name": name, "owner": "worker", "claim": "1" })).await.is(200);
    let again = json!({ "claim": "2", "reenter": token });
    assert_eq!(alice.acquire(and(wish(&name, "worker", TTL), again)).await.is(200).json()["token"], *token);
    alice.release(json!({ "name": name, "owner": "worker", "claim": "2" })).await.is(200);
    alice.release(json!({ "name": name, "owner": "worker", "claim": "1" })).await.is(200);
    assert_eq!(look.counts(&name).await, (0, 0));
}

over!(a_break_that_is_sent_twice_does_not_reach_who_holds_next: redis, etcd, zookeeper);

async fn a_break_that_is_sent_twice_does_not_reach_who_holds_next(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("broken");
    let first = a.acquire(wish(&name, "first", TTL)).await.is(200);
    let next = b.acquiring(and(wish(&name, "next", WAITING), json!({ "wait_ms": 50_000 }))).await;
    look.until(&name, (1, 1)).await;
    let path = format!("/v1/locks/{name}?token={}&reason=stuck", first.token());
    assert_eq!(a.delete(&path).await.is(200).json()["broken"], 1);
    let next = next.reply().await.is(200);
    assert!(next.token() > first.token());
    for instance in [&a, &b] {
        assert_eq!(instance.delete(&path).await.is(200).json()["broken"], 0);
        assert_eq!(look.tokens(&name).await, [next.token()]);
    }
    let told = a.renew(json!({ "name": name, "owner": "first", "claim": "1" })).await.tells_problem(410, "broken");
    assert_eq!(told.json()["reason"], "stuck");
    a.release(json!({ "name": name, "owner": "first", "claim": "1" })).await.tells_problem(410, "broken");
    assert_eq!(look.tokens(&name).await, [next.token()]);
}

/// The sessions of ZooKeeper that have nodes of a name.
fn sessions_of(name: &str) -> Vec<String> {
    let told = tenure_testkit::servers::shared::zookeeper().word(0, "dump").unwrap();
    let mut session = String::new();
    let mut found = Vec::new();
    for line in told.lines() {
        if line.starts_with("0x") {
            session = line.trim_end_matches(':').to_owned();
        } else if line.contains(name) {
            found.push(session.clone());
        }
    }
    found
}

over!(a_request_that_was_taken_over_does_not_move_the_claim: zookeeper);

async fn a_request_that_was_taken_over_does_not_move_the_claim(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let (name, other) = (name("moved"), name("other"));
    a.acquire(wish(&name, "holder", TTL)).await.is(200);
    let waits = and(wish(&name, "worker", WAITING), json!({ "wait_ms": 50_000 }));
    let at_a = a.acquiring(waits.clone()).await;
    look.until(&name, (1, 1)).await;
    let _at_b = b.acquiring(waits).await;
    at_a.reply().await.tells_problem(409, "superseded");
    // Claims of one ttl at one instance are in one session.
    b.acquire(wish(&other, "worker", WAITING)).await.is(200);
    let [of_b] = &sessions_of(&other)[..] else { panic!("one node") };
    let found = sessions_of(&name);
    assert!(found.contains(of_b), "{found:?}, not {of_b}");
}
