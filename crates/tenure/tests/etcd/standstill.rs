//! A leader that stands still and goes on, with locks that change hands all the time.
//!
//! Before 3.4.31 and 3.5.13 such a leader revokes leases that are renewed (etcd#15247). Two holders may overlap then:
//! that is counted, and what is promised all the same is checked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::backend::Survival;
use tenure::fence::Gate;
use tenure::{ErrorKind, Loss, Tenure, Token};
use tenure_testkit::servers::Etcd;
use tokio::time::{sleep, timeout};

use crate::support::{connect, soon};

const ROUNDS: usize = 15;
const TTL: Duration = Duration::from_secs(3);
/// Long enough that its key is watched, and that a loss heard of only at the deadline shows.
const HOLD: Duration = Duration::from_secs(2);
/// Past the election timeout, and past the leases as the leader knew them when it stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// Until it goes on revoking, and everybody holds again.
const RUNNING: Duration = Duration::from_secs(3);
/// How soon a holder hears that its key was revoked, on a busy machine. Its deadline is up to a ttl away.
const HEARD_MAX: Duration = Duration::from_secs(1);

/// One holding, as its holder saw it.
#[derive(Debug)]
struct Held {
    token: Token,
    from: Instant,
    until: Instant,
    loss: Option<Loss>,
}

/// What the holders share: the fenced resource has the tokens of all writes that it accepted.
struct Shared {
    over: AtomicBool,
    register: Gate<Vec<Token>>,
    refused: Mutex<usize>,
    turns: Mutex<Vec<Held>>,
}

/// Takes turns with others until it is over.
async fn take_turns(tenure: Tenure, shared: Arc<Shared>) {
    let lock = tenure.lock("x").ttl(TTL);
    while !shared.over.load(Ordering::Relaxed) {
        let guard = match soon("a grant", lock.acquire()).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => continue,
            granted => granted.unwrap(),
        };
        let (from, token) = (Instant::now(), guard.token().unwrap());
        let write = || {
            if shared.register.write(&guard, |tokens| tokens.push(token)).is_err() {
                *shared.refused.lock().unwrap() += 1;
            }
        };
        write();
        let loss = timeout(HOLD, guard.lost()).await.ok();
        let until = Instant::now();
        // Late, should it be lost: the register decides.
        write();
        shared.turns.lock().unwrap().push(Held { token, from, until, loss });
        if let Err(error) = soon("a release", guard.release()).await {
            let told = [ErrorKind::Unavailable, ErrorKind::Lost];
            assert!(told.contains(&error.kind()), "{error}");
        }
    }
}

/// Whether a leader of this version that stands still revokes leases that are renewed.
fn loses_leases(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
    match [(); 3].map(|()| numbers.next().unwrap()) {
        [3, 4, patch] => patch < 31,
        [3, 5, patch] => patch < 13,
        [major, minor, _] => (major, minor) < (3, 4),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: a leader stands still 15 times, for 5 s each"]
async fn a_leader_that_stands_still_leaves_what_the_token_protects() {
    let etcd = Etcd::start();
    let clients = [connect(&etcd.url()).await, connect(&etcd.url()).await];
    let version = etcd.etcdctl(&["version"]);
    let version = version.lines().find_map(|line| line.strip_prefix("etcdctl version: ")).unwrap().trim().to_owned();
    let promised = clients[0].guarantees().failover;
    let expected = if loses_leases(&version) { Survival::FencedOnly } else { Survival::Kept };
    assert_eq!(promised, expected, "etcd {version}");
    let shared = Arc::new(Shared {
        over: AtomicBool::new(false),
        register: Gate::new(Vec::new()),
        refused: Mutex::default(),
        turns: Mutex::default(),
    });
    let holders: Vec<_> =
        clients.iter().map(|client| tokio::spawn(take_turns(client.clone(), shared.clone()))).collect();
    for _ in 0..ROUNDS {
        let leader = etcd.leader();
        etcd.pause(leader);
        sleep(STOPPED).await;
        etcd.resume(leader);
        sleep(RUNNING).await;
        assert!(holders.iter().all(|holder| !holder.is_finished()), "a holder failed");
    }
    shared.over.store(true, Ordering::Relaxed);
    for holder in holders {
        soon("the last turn", holder).await.unwrap();
    }
    let shared = Arc::into_inner(shared).expect("all holders have ended");
    judge(shared, &version, promised);
}

/// Checks what is promised, and tells what happened.
fn judge(shared: Shared, version: &str, promised: Survival) {
    let mut turns = shared.turns.into_inner().unwrap();
    turns.sort_by_key(|held| held.token);
    let accepted = shared.register.into_inner();
    assert!(accepted.is_sorted(), "the register took an older token after a newer one: {accepted:?}");
    assert!(turns.windows(2).all(|two| two[0].token < two[1].token), "a token was given twice");
    let late = turns.windows(2).find(|two| two[1].until < two[0].from);
    assert!(late.is_none(), "tokens do not rise: {late:?}");
    let overlaps: Vec<_> = turns.windows(2).filter(|two| two[1].from < two[0].until).collect();
    let heard: Vec<Duration> = overlaps.iter().map(|two| two[0].until - two[1].from).collect();
    let count = |loss: fn(&Loss) -> bool| turns.iter().filter(|held| held.loss.as_ref().is_some_and(loss)).count();
    let (gone, expired) = (count(|loss| *loss == Loss::Gone), count(|loss| *loss == Loss::Expired));
    println!(
        "etcd {version}: {} turns, {ROUNDS} standstills, {} overlaps (longest {:?}), {gone} revoked, \
         {expired} expired, {} late writes refused",
        turns.len(),
        overlaps.len(),
        heard.iter().max().copied().unwrap_or_default(),
        shared.refused.into_inner().unwrap(),
    );
    // Whoever lost its key to the next holder hears of it, and does not go on until its deadline.
    let deaf = overlaps.iter().zip(&heard).find(|(_, heard)| **heard > HEARD_MAX);
    assert!(deaf.is_none(), "a holder whose key was revoked did not hear: {deaf:?}");
    assert!(promised != Survival::Kept || overlaps.is_empty(), "overlaps: {overlaps:?}");
}

/// What holders would leave behind that took these tokens one after the other, each for so long, a second apart.
fn left(turns: [(u64, Duration); 2], accepted: [u64; 2]) -> Shared {
    let start = Instant::now();
    let held = |(index, (token, long)): (u32, (u64, Duration))| {
        let from = start + Duration::from_secs(1) * index;
        Held { token: Token(token), from, until: from + long, loss: None }
    };
    Shared {
        over: AtomicBool::new(true),
        register: Gate::new(accepted.map(Token).to_vec()),
        refused: Mutex::default(),
        turns: Mutex::new((0..).zip(turns).map(held).collect()),
    }
}

#[test]
#[should_panic(expected = "did not hear")]
fn a_holder_that_goes_on_although_its_key_was_revoked_is_found() {
    let long = Duration::from_millis(2_100);
    judge(left([(1, long), (2, long)], [1, 2]), "3.4.23", Survival::FencedOnly);
}

#[test]
#[should_panic(expected = "an older token after a newer one")]
fn a_write_with_an_older_token_is_found() {
    let short = Duration::from_millis(500);
    judge(left([(1, short), (2, short)], [2, 1]), "3.4.23", Survival::FencedOnly);
}

#[test]
#[should_panic(expected = "tokens do not rise")]
fn a_token_that_is_lower_than_an_earlier_holders_is_found() {
    let short = Duration::from_millis(500);
    judge(left([(2, short), (1, short)], [1, 2]), "3.4.23", Survival::FencedOnly);
}

#[test]
#[should_panic(expected = "overlaps")]
fn two_holders_are_found_where_that_is_promised_not_to_be() {
    let long = Duration::from_millis(1_100);
    judge(left([(1, long), (2, long)], [1, 2]), "3.4.31", Survival::Kept);
}
