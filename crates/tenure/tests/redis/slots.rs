//! A cluster whose slots move from master to master while their names are in use.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{ErrorKind, Guard};
use tenure_testkit::servers::{Cluster, Redis, wait_until};

use crate::cluster::{another_master, masters, name_on};
use crate::failover::{
    LONG, Tokens, acquire, connect, end, granted, grants_are_told, record, soon, until, until_waiting,
};

/// The record of a name, the three keys of its queue, and its memo.
fn keys(name: &str) -> [String; 5] {
    ["", "claims", "order", "expiry", "memo"].map(|key| record(name) + key)
}

fn migrate_key(from: &Redis, to: &Redis, key: &str) -> String {
    from.cli(&["migrate", "127.0.0.1", &to.port().to_string(), "", "0", "5000", "keys", key])
}

/// One name, the master it is on, and the one it is to move to.
pub(crate) struct Move<'a> {
    cluster: &'a Cluster,
    name: String,
    slot: u16,
    pub(crate) from: &'a Redis,
    to: &'a Redis,
}

impl<'a> Move<'a> {
    pub(crate) fn of(cluster: &'a Cluster, name: &str) -> Self {
        let slot = cluster.slot_of(&record(name));
        let from = cluster.master_of(&record(name));
        Self { cluster, name: name.to_owned(), slot, from, to: another_master(cluster, from) }
    }

    pub(crate) fn begin(&self) {
        self.cluster.begin_migration(self.slot, self.from, self.to);
    }

    /// Moves one of the name's keys.
    pub(crate) fn key(&self, number: usize) {
        assert_eq!(migrate_key(self.from, self.to, &keys(&self.name)[number]), "OK", "key {number}");
    }

    pub(crate) fn finish(&self) {
        self.cluster.move_keys(self.slot, self.from, self.to);
        self.cluster.end_migration(self.slot, self.from, self.to);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_whose_slot_has_moved_is_found_and_its_waiters_are_woken() {
    let cluster = Cluster::start();
    let (a, b) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let mut tokens = Tokens::default();
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let token = tokens.next(&held);
    let waiting = acquire(&b, "x", LONG);
    until_waiting(&a, "x", 1).await;
    let moving = Move::of(&cluster, "x");
    moving.begin();
    moving.finish();
    assert!(held.is_held() && held.token() == Some(token));
    assert!(!waiting.is_finished());
    soon("a release", held.release()).await.unwrap();
    let next = granted("the waiter's turn", waiting).await;
    tokens.next(&next);
    next.release().await.unwrap();
    grants_are_told(&a, &b, "x", moving.to).await;
    // A free name is nowhere: the slot alone has moved.
    let back = Move { from: moving.to, to: moving.from, ..Move::of(&cluster, "x") };
    back.begin();
    back.finish();
    let again = soon("a grant", a.lock("x").ttl(LONG).acquire()).await.unwrap();
    tokens.next(&again);
    again.release().await.unwrap();
    end([a, b], &masters(&cluster)).await;
}

/// What one name's holder and waiters do while its slot is half way, after a step of the migration.
async fn half_way(with_waiter: bool, moved: &[usize]) {
    let cluster = Cluster::start();
    let (a, b, c) = (connect(cluster.url()).await, connect(cluster.url()).await, connect(cluster.url()).await);
    let mut tokens = Tokens::default();
    let ttl = Duration::from_secs(30);
    let held = a.lock("x").ttl(ttl).acquire().await.unwrap();
    let token = tokens.next(&held);
    let mut waiting = with_waiter.then(|| acquire(&b, "x", ttl));
    until_waiting(&a, "x", usize::from(with_waiter)).await;
    let moving = Move::of(&cluster, "x");
    // So that what is asked there is not refused for a script it has never seen.
    let there = c.lock(name_on(&cluster, moving.to, "there")).ttl(ttl).acquire().await.unwrap();
    there.release().await.unwrap();
    moving.begin();
    for key in moved {
        moving.key(*key);
    }
    // Nobody's turn: whoever comes is told so, or cannot be told.
    match soon("an answer", c.lock("x").ttl(ttl).try_acquire()).await {
        Ok(none) => assert!(none.is_none(), "granted beside the holder"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
    }
    let mut late = acquire(&c, "x", ttl);
    // Renewals meanwhile: over a new connection every claim is renewed.
    for node in [moving.from, moving.to] {
        node.cli(&["client", "kill", "type", "pubsub"]);
    }
    let met = soon("a renewal is answered or refused", async {
        until("the clients have asked", async || {
            [moving.from, moving.to]
                .iter()
                .all(|node| node.cli(&["pubsub", "channels", "tenure:inbox:*"]).lines().count() == 3)
        })
        .await;
        tokio::time::timeout(Duration::from_millis(700), held.lost()).await
    })
    .await;
    assert!(met.is_err(), "lost while its name moved: {met:?}");
    let early = waiting.iter_mut().chain([&mut late]).find(|waiting| waiting.is_finished());
    if let Some(early) = early {
        panic!("granted beside the holder, or failed: {:?}", early.await.unwrap().map(|guard| guard.token()));
    }
    moving.finish();
    assert!(held.is_held() && held.token() == Some(token));
    soon("a release", held.release()).await.unwrap();
    if let Some(waiting) = waiting {
        let next = granted("the waiter's turn", waiting).await;
        tokens.next(&next);
        next.release().await.unwrap();
    }
    let last = granted("the late one's turn", late).await;
    tokens.next(&last);
    last.release().await.unwrap();
    until("claims end", async || a.live_claims() + b.live_claims() + c.live_claims() == 0).await;
    end([a, b, c], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_name_lives_on_while_its_slot_begins_to_move() {
    half_way(false, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_name_lives_on_when_its_record_has_moved() {
    half_way(false, &[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_lives_on_while_its_slot_begins_to_move() {
    half_way(true, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_lives_on_when_only_its_record_has_moved() {
    half_way(true, &[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_lives_on_when_only_its_order_has_moved() {
    half_way(true, &[2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_lives_on_when_its_record_and_claims_have_moved() {
    half_way(true, &[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_lives_on_when_all_but_its_claims_have_moved() {
    half_way(true, &[0, 2, 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_name_is_granted_where_its_slot_moves_to() {
    let cluster = Cluster::start();
    let a = connect(cluster.url()).await;
    let mut tokens = Tokens::default();
    let moving = Move::of(&cluster, "x");
    moving.begin();
    // The new master has not seen the script yet.
    assert_eq!(moving.to.cli(&["script", "flush"]), "OK");
    let held = soon("a grant", a.lock("x").ttl(LONG).acquire()).await.unwrap();
    tokens.next(&held);
    assert_eq!(moving.from.cli(&["dbsize"]), "0", "it was granted where it moves to");
    soon("a release", held.release()).await.unwrap();
    let again = soon("a grant", a.lock("x").ttl(LONG).try_acquire()).await.unwrap().expect("a free name");
    tokens.next(&again);
    moving.finish();
    soon("a release", again.release()).await.unwrap();
    end([a], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_under_a_lock_counts_right_while_its_slot_moves() {
    const CLIENTS: usize = 4;
    let cluster = Cluster::start();
    let counter = Arc::new(Mutex::new((0_u64, Tokens::default())));
    let (inside, stop, done) =
        (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let tenure = connect(cluster.url()).await;
        let (counter, inside, stop, done) = (counter.clone(), inside.clone(), stop.clone(), done.clone());
        tasks.push(tokio::spawn(async move {
            let mut turns = 0;
            while !stop.load(Ordering::Acquire) {
                // Some with a cohort and its blocks, some without.
                let lock = tenure.lock("x").ttl(LONG);
                let lock = if number % 2 == 0 { lock.strict_fifo() } else { lock };
                let guard: Guard = soon("a turn", lock.acquire()).await.expect("a grant");
                assert!(!inside.swap(true, Ordering::AcqRel), "two at once");
                {
                    let (count, tokens) = &mut *counter.lock().unwrap();
                    tokens.next(&guard);
                    *count += 1;
                }
                tokio::task::yield_now().await;
                assert!(inside.swap(false, Ordering::AcqRel));
                soon("a release", guard.release()).await.expect("a release");
                turns += 1;
                done.fetch_add(1, Ordering::AcqRel);
            }
            (tenure, turns)
        }));
    }
    let pass = async |count: u64| {
        let before = done.load(Ordering::Acquire);
        until("turns are taken", async || {
            assert!(tasks.iter().all(|task| !task.is_finished()), "a client has failed");
            done.load(Ordering::Acquire) > before + count
        })
        .await;
    };
    for _ in 0..4 {
        pass(20).await;
        let moving = Move::of(&cluster, "x");
        moving.begin();
        tokio::task::yield_now().await;
        moving.finish();
    }
    pass(20).await;
    stop.store(true, Ordering::Release);
    let mut clients = Vec::new();
    let mut turns = 0;
    for task in tasks {
        let (tenure, own) = soon("a client ends", task).await.unwrap();
        turns += own;
        clients.push(tenure);
    }
    assert_eq!(counter.lock().unwrap().0, turns);
    end(clients, &masters(&cluster)).await;
}

/// Holders of one name: some release it before its slot is on its way, all others while it is, with all keys still
/// where they were.
async fn released_half_way(readers: usize, before: usize) {
    let cluster = Cluster::start();
    let ttl = Duration::from_secs(30);
    let mut tokens = Tokens::default();
    let mut held = Vec::new();
    for _ in 0..readers.max(1) {
        let tenure = connect(cluster.url()).await;
        let lock = if readers == 0 { tenure.lock("x") } else { tenure.rwlock("x").read() };
        held.push((tenure, lock.ttl(ttl).acquire().await.unwrap()));
    }
    tokens.next(&held[0].1);
    let mut clients = Vec::new();
    for (tenure, guard) in held.drain(..before) {
        guard.release().await.unwrap();
        clients.push(tenure);
    }
    let moving = Move::of(&cluster, "x");
    moving.begin();
    let mut releases = Vec::new();
    for (tenure, guard) in held {
        releases.push(tokio::spawn(guard.release()));
        clients.push(tenure);
    }
    if readers == 0 {
        // One key is enough for this: it does not wait for the slot.
        soon("a release", releases.remove(0)).await.unwrap().expect("it was held");
    }
    moving.finish();
    for release in releases {
        soon("a release", release).await.unwrap().expect("it was held");
    }
    let next = soon("a grant", clients[0].lock("x").ttl(ttl).try_acquire()).await.unwrap().expect("a free name");
    tokens.next(&next);
    next.release().await.unwrap();
    end(clients, &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_released_while_its_slot_moves() {
    released_half_way(0, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_a_queue_is_released_while_its_slot_moves() {
    released_half_way(2, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_queue_are_released_while_their_slot_moves() {
    released_half_way(3, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_not_heard_of_a_move_misleads_nobody() {
    let cluster = Cluster::start();
    let moving = Move::of(&cluster, "x");
    let all = masters(&cluster);
    let third = all.iter().find(|node| ![moving.from.port(), moving.to.port()].contains(&node.port())).unwrap();
    let id = |node: &Redis| node.cli(&["cluster", "myid"]);
    let belongs_to = |node: &Redis, owner: &str| {
        assert_eq!(node.cli(&["cluster", "setslot", &moving.slot.to_string(), "node", owner]), "OK");
    };
    let (from, to) = (id(moving.from), id(moving.to));
    // Each may ask any of the three where the slot is: one of twelve surely asks the one that does not know.
    let mut held = Vec::new();
    for _ in 0..12 {
        let tenure = connect(cluster.url()).await;
        let guard = tenure.rwlock("x").read().ttl(LONG).acquire().await.unwrap();
        held.push((tenure, guard));
    }
    moving.begin();
    cluster.move_keys(moving.slot, moving.from, moving.to);
    belongs_to(moving.to, &to);
    belongs_to(moving.from, &to);
    let mut clients = Vec::new();
    for (tenure, guard) in held {
        // It soon hears of it again.
        belongs_to(third, &from);
        soon("a release", guard.release()).await.unwrap();
        clients.push(tenure);
    }
    end(clients, &all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_gets_its_first_slots_is_used_at_once() {
    let cluster = Cluster::start();
    let (a, b) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let known = cluster.nodes()[0].address();
    let new = Redis::builder().config("cluster-enabled", "yes").config("cluster-node-timeout", "5000").start();
    new.cli(&["cluster", "meet", "127.0.0.1", known.rsplit(':').next().unwrap()]);
    let says = |node: &Redis, what: &str| node.cli(&["cluster", "info"]).lines().any(|line| line.trim_end() == what);
    wait_until("all know the new node", || {
        says(&new, "cluster_state:ok")
            && cluster.nodes().iter().chain([&new]).all(|node| says(node, "cluster_known_nodes:7"))
    });
    let moving = Move::of(&cluster, "x");
    let moving = Move { to: &new, ..moving };
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(&b, "x", LONG);
    until_waiting(&a, "x", 1).await;
    moving.begin();
    moving.finish();
    soon("a release", held.release()).await.unwrap();
    granted("the waiter's turn", waiting).await.release().await.unwrap();
    grants_are_told(&a, &b, "x", &new).await;
    let listed = a.lock("x").ttl(LONG).acquire().await.unwrap();
    assert_eq!(a.list("x").await.unwrap().len(), 1, "a list looks there, too");
    listed.release().await.unwrap();
    end([a, b], &[masters(&cluster), vec![&new]].concat()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plain_layout_works_on_a_cluster_whose_slots_move() {
    let cluster = Cluster::start();
    let url = format!("{}?layout=plain", cluster.url());
    let (a, b) = (connect(&url).await, connect(&url).await);
    let names: Vec<String> = (0..12).map(|number| format!("p{number}")).collect();
    let used: BTreeSet<u16> = names.iter().map(|name| cluster.master_of(name).port()).collect();
    assert_eq!(used.len(), 3);
    let mut held: Vec<Guard> = Vec::new();
    for name in &names {
        held.push(a.lock(name).ttl(LONG).acquire().await.unwrap());
        assert!(b.lock(name).ttl(LONG).try_acquire().await.unwrap().is_none());
        assert_eq!(cluster.master_of(name).cli(&["exists", name]), "1");
    }
    assert_eq!(b.list("p").await.unwrap().len(), names.len());
    let from = cluster.master_of("p0");
    let to = another_master(&cluster, from);
    let slot = cluster.slot_of("p0");
    cluster.begin_migration(slot, from, to);
    assert!(soon("an answer", b.lock("p0").ttl(LONG).try_acquire()).await.unwrap().is_none());
    cluster.move_keys(slot, from, to);
    assert!(soon("an answer", b.lock("p0").ttl(LONG).try_acquire()).await.unwrap().is_none(), "asked where it went");
    cluster.end_migration(slot, from, to);
    for guard in held {
        soon("a release", guard.release()).await.unwrap();
    }
    soon("a grant", b.lock("p0").ttl(LONG).acquire()).await.unwrap().release().await.unwrap();
    for master in masters(&cluster) {
        assert_eq!(master.cli(&["dbsize"]), "0");
    }
    end([a, b], &masters(&cluster)).await;
}
