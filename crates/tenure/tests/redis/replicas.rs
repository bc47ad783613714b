//! `min_replicas`: what counts only once replicas have it.

use std::time::Duration;

use tenure::{ErrorKind, Loss, Replicas, Tenure};
use tenure_testkit::servers::{Cluster, Redis, Sentinel, leftovers, wait_until};

use crate::failover::{LONG, Tokens, connect, copied, end, granted, nothing_left, record, soon, until, until_waiting};

/// A master with replicas, two as a rule, that nobody watches over.
pub(crate) struct Replicated<const N: usize = 2> {
    pub(crate) master: Redis,
    pub(crate) replicas: [Redis; N],
}

impl Replicated {
    pub(crate) fn start() -> Self {
        Self::with()
    }
}

impl<const N: usize> Replicated<N> {
    fn with() -> Self {
        let node = || Redis::builder().config("repl-diskless-sync-delay", "0");
        let master = node().start();
        let of = format!("127.0.0.1 {}", master.port());
        let all = Self { replicas: [(); N].map(|()| node().config("replicaof", &of).start()), master };
        all.wait_until_online(N);
        // A replica that is online may take another second before it says how far it is.
        all.master.cli(&["set", "first", "1", "px", "1"]);
        wait_until("the replicas say how far they are", || {
            let info = all.master.cli(&["info", "replication"]);
            let offset = info.lines().find_map(|line| line.trim_end().strip_prefix("master_repl_offset:"));
            offset.is_some_and(|offset| info.matches(&format!("offset={offset},")).count() == N)
        });
        all
    }

    fn wait_until_online(&self, count: usize) {
        let online = || self.master.cli(&["info", "replication"]).matches("state=online").count();
        wait_until("the replicas follow", || online() == count);
    }

    pub(crate) fn pause(&self) {
        self.replicas.iter().for_each(Redis::pause);
    }

    pub(crate) fn resume(&self) {
        self.replicas.iter().for_each(Redis::resume);
    }

    /// A client that is told how many replicas there are.
    pub(crate) async fn connect(&self) -> Tenure {
        connect(format!("{}?replicas={N}", self.master.url())).await
    }

    /// What is left, but for the key that WAIT is asked with and the channels of clients that live.
    fn claims(&self) -> Vec<String> {
        let mut left = leftovers(&self.master);
        left.retain(|line| !line.starts_with("channel") && !line.starts_with("tenure:last:sync"));
        left
    }

    /// How often a release has deleted something.
    fn deleted(&self) -> u64 {
        let stats = self.master.cli(&["info", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_del:calls="));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    }

    /// How many replicas know this claim.
    fn copies(&self, name: &str, claim: &str) -> usize {
        let knows = |replica: &&Redis| {
            let claims = format!("{}claims", record(name));
            replica.cli(&["get", &record(name)]).contains(claim) || replica.cli(&["hexists", &claims, claim]) == "1"
        };
        self.replicas.iter().filter(knows).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_hand_overs_and_renewals_wait_for_replicas() {
    let servers = Replicated::start();
    let (a, b) = (servers.connect().await, servers.connect().await);
    let mut tokens = Tokens::default();
    for (replicas, enough) in [(Replicas::AtLeast(1), 1), (Replicas::AtLeast(2), 2), (Replicas::Majority, 1)] {
        let lock = |tenure: &Tenure| tenure.lock("x").ttl(Duration::from_secs(3)).min_replicas(replicas);
        let held = copied(&lock(&a)).await;
        tokens.next(&held);
        assert!(servers.copies("x", &held.claim_id().to_string()) >= enough);
        let next = lock(&b);
        let next = tokio::spawn(async move { next.acquire().await });
        until_waiting(&a, "x", 1).await;
        let first = held.deadline();
        until("it is renewed", async || held.deadline() > first).await;
        held.release().await.unwrap();
        let next = granted("the next one's turn", next).await;
        tokens.next(&next);
        assert!(servers.copies("x", &next.claim_id().to_string()) >= enough);
        let first = next.deadline();
        until("it is renewed, too", async || next.deadline() > first).await;
        next.release().await.unwrap();
    }
    end([a, b], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_too_few_replicas_have_is_given_back() {
    let servers = Replicated::start();
    let a = servers.connect().await;
    let mut tokens = Tokens::default();
    let refused = async |replicas: u32, said: &str| {
        for lock in [a.lock("x"), a.session().lock("x"), a.semaphore("permits", 3), a.rwlock("shared").read()] {
            let refused = soon("an answer", lock.ttl(LONG).min_replicas(replicas).acquire()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Replicas, "{refused}");
            assert!(refused.to_string().contains(said), "{refused}");
        }
        assert_eq!(a.live_claims(), 0);
        // The clean-up was sent before the refusal was told, over the same connection.
        let free = soon("an answer", a.lock("x").ttl(LONG).try_acquire()).await.unwrap().expect("a free name");
        free.release().await.unwrap();
        nothing_left(|| servers.claims());
    };
    servers.pause();
    refused(2, "0 of the 2").await;
    refused(1, "0 of the 1").await;
    let tried = soon("an answer", a.lock("x").ttl(LONG).min_replicas(1).try_acquire()).await.unwrap_err();
    assert_eq!(tried.kind(), ErrorKind::Replicas);
    servers.resume();
    let held = copied(&a.lock("x").ttl(LONG).min_replicas(2)).await;
    tokens.next(&held);
    held.release().await.unwrap();
    servers.replicas[0].kill();
    refused(2, "1 of the 2").await;
    servers.replicas[1].kill();
    refused(2, "0 of the 2").await;
    end([a], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_that_too_few_replicas_have_is_given_back() {
    let servers = Replicated::start();
    let (a, b, c) = (servers.connect().await, servers.connect().await, servers.connect().await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let wary = b.lock("x").ttl(LONG).min_replicas(1);
    let wary = tokio::spawn(async move { wary.acquire().await });
    until_waiting(&a, "x", 1).await;
    let last = c.lock("x").ttl(LONG);
    let last = tokio::spawn(async move { last.acquire().await });
    until_waiting(&a, "x", 2).await;
    servers.pause();
    held.release().await.unwrap();
    let refused = soon("an answer", wary).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Replicas, "{refused}");
    let last = granted("who does not care comes next", last).await;
    last.release().await.unwrap();
    nothing_left(|| servers.claims());
    servers.resume();
    end([a, b, c], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_replicas_stop_is_lost_at_its_deadline_and_released_after_it() {
    let servers = Replicated::start();
    let (a, b) = (servers.connect().await, servers.connect().await);
    let mut tokens = Tokens::default();
    let held = copied(&a.lock("x").ttl(Duration::from_secs(9)).min_replicas(2)).await;
    tokens.next(&held);
    servers.pause();
    let deadline = held.deadline();
    let deleted = servers.deleted();
    let next = b.lock("x").ttl(LONG);
    let next = tokio::spawn(async move { next.acquire().await });
    let mut looks = 0;
    until("it is lost", async || {
        let there = servers.master.cli(&["exists", &record("x")]) == "1";
        // In this order: held after the look means held during it.
        if !held.is_held() {
            return true;
        }
        assert!(there && !next.is_finished(), "released before it was lost");
        looks += 1;
        false
    })
    .await;
    assert!(looks > 3, "{looks}");
    assert_eq!(soon("it is lost", held.lost()).await, Loss::Expired);
    assert!(a.clock().now() + Duration::from_millis(2) >= deadline, "lost before its deadline");
    let failure = held.renewal_failure().expect("a failed renewal");
    assert!(failure.contains("0 of 2"), "{failure}");
    let next = granted("the next one's turn", next).await;
    tokens.next(&next);
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.release().await.unwrap();
    until("it was released", async || servers.deleted() > deleted).await;
    servers.resume();
    end([a, b], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_replicas_come_back_in_time_is_kept() {
    let servers = Replicated::start();
    let a = servers.connect().await;
    let held = copied(&a.lock("x").ttl(Duration::from_secs(9)).min_replicas(2)).await;
    let token = held.token();
    servers.pause();
    until("a renewal fails", async || held.renewal_failure().is_some()).await;
    let deadline = held.deadline();
    servers.resume();
    until("a renewal counts", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == token);
    assert_eq!(held.renewal_failure(), None);
    held.release().await.unwrap();
    end([a], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_is_of_all_replicas_those_that_are_away_included() {
    let servers = Replicated::start();
    let a = servers.connect().await;
    let lock = a.lock("x").ttl(LONG).min_replicas(Replicas::Majority);
    copied(&lock).await.release().await.unwrap();
    servers.replicas[0].kill();
    servers.wait_until_online(1);
    copied(&lock).await.release().await.unwrap();
    servers.replicas[1].kill();
    servers.wait_until_online(0);
    let refused = soon("an answer", lock.acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Replicas);
    assert!(refused.to_string().contains("0 of the 1"), "{refused}");
    nothing_left(|| servers.claims());
    drop(lock);
    end([a], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_know_of_replicas_that_a_client_never_saw() {
    let sentinel = Sentinel::start();
    let replicas = sentinel.replicas();
    replicas[0].kill();
    let master = sentinel.master();
    let online = || master.cli(&["info", "replication"]).matches("state=online").count();
    wait_until("one is gone", || online() == 1);
    let a = connect(sentinel.url()).await;
    let lock = a.lock("x").ttl(LONG).min_replicas(Replicas::Majority);
    copied(&lock).await.release().await.unwrap();
    replicas[1].kill();
    wait_until("both are gone", || online() == 0);
    let refused = soon("an answer", lock.acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Replicas, "{refused}");
    assert!(refused.to_string().contains("0 of the 1"), "{refused}");
    // And one that comes when both are gone already.
    let b = connect(sentinel.url()).await;
    let refused =
        soon("an answer", b.lock("x").ttl(LONG).min_replicas(Replicas::Majority).acquire()).await.unwrap_err();
    assert!(refused.to_string().contains("0 of the 1"), "{refused}");
    drop(lock);
    end([a, b], &[master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_does_not_shrink_with_the_replicas_that_die_before_a_client_comes() {
    let servers = Replicated::<3>::with();
    servers.replicas[1..].iter().for_each(Redis::kill);
    servers.wait_until_online(1);
    let late = servers.connect().await;
    let lock = late.lock("x").ttl(LONG).min_replicas(Replicas::Majority);
    let refused = soon("an answer", lock.acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Replicas, "{refused}");
    assert!(refused.to_string().contains("1 of the 2"), "{refused}");
    servers.replicas[1].restart();
    servers.wait_until_online(2);
    copied(&lock).await.release().await.unwrap();
    drop(lock);
    end([late], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_of_nobody_knows_how_many_is_refused_before_anything_is_claimed() {
    let server = Redis::start();
    let a = connect(server.url()).await;
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let lock = a.lock("x").min_replicas(Replicas::Majority);
    for refused in [soon("an answer", lock.acquire()).await.unwrap_err(), lock.try_acquire().await.unwrap_err()] {
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains("?replicas=2"), "{refused}");
    }
    held.release().await.unwrap();
    drop(lock);
    end([a], &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_of_no_replicas_is_refused() {
    let alone = Redis::start();
    let a = connect(format!("{}?replicas=1", alone.url())).await;
    for replicas in [Replicas::Majority, Replicas::AtLeast(1)] {
        let refused = soon("an answer", a.lock("x").min_replicas(replicas).acquire()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Replicas, "{refused}");
        assert!(refused.to_string().contains("0 of the 1"), "{refused}");
    }
    end([a], &[&alone]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_counts_replicas_for_each_master() {
    let cluster = Cluster::start();
    let names = ["a", "b", "c", "d", "e", "f"];
    let master = |name: &str| cluster.master_of(&record(name)).port();
    let (here, there) = (names[0], *names.iter().find(|name| master(name) != master(names[0])).expect("two masters"));
    cluster.replica_of(cluster.master_of(&record(here))).kill();
    let online = |name: &str| {
        let info = cluster.master_of(&record(name)).cli(&["info", "replication"]);
        info.matches("state=online").count()
    };
    wait_until("one master has none left", || (online(here), online(there)) == (0, 1));
    let a = connect(cluster.url()).await;
    let majority = |name: &str| a.lock(name).ttl(LONG).min_replicas(Replicas::Majority);
    let refused = soon("an answer", majority(here).acquire()).await.unwrap_err();
    assert!(refused.to_string().contains("0 of the 1"), "{refused}");
    copied(&majority(there)).await.release().await.unwrap();
    let refused = soon("an answer", majority(here).acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Replicas, "{refused}");
    a.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_without_replicas_refuse_to_wait_for_them() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".to_owned(), format!("sqlite:{}", folder.path().join("locks.db").display())] {
        let tenure = connect(&url).await;
        for replicas in [Replicas::AtLeast(1), Replicas::Majority] {
            let lock = tenure.lock("x").min_replicas(replicas);
            assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Invalid, "{url}");
            assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Invalid, "{url}");
        }
        assert_eq!(tenure.live_claims(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_holds_up_no_other_claim() {
    const ROUNDS: usize = 5;
    let servers = Replicated::start();
    let a = servers.connect().await;
    copied(&a.lock("x").ttl(LONG).min_replicas(2)).await.release().await.unwrap();
    servers.pause();
    let mut first = 0;
    for _ in 0..ROUNDS {
        let wary = a.lock("x").ttl(LONG).min_replicas(2);
        let wary = tokio::spawn(async move { wary.acquire().await });
        until("it has its grant, but not yet the replicas", async || {
            servers.master.cli(&["exists", &record("x")]) == "1"
        })
        .await;
        let other = soon("another lock", a.lock("other").ttl(LONG).acquire()).await.unwrap();
        other.release().await.unwrap();
        first += usize::from(!wary.is_finished());
        let refused = soon("an answer", wary).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Replicas);
        until("it is given back", async || servers.master.cli(&["exists", &record("x")]) == "0").await;
    }
    // One round may meet a machine that stands still for a moment.
    assert!(first >= ROUNDS - 1, "only {first} of {ROUNDS} others went first");
    servers.resume();
    end([a], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_holds_up_no_other_renewal() {
    let servers = Replicated::start();
    let a = servers.connect().await;
    // So short that a renewal that comes after replicas were waited for comes too late; and so that all are due
    // together.
    let ttl = Duration::from_millis(1_400);
    let grants = (0..9).map(|number| {
        let lock = a.lock(format!("lock/{number}")).ttl(ttl);
        let lock = if number == 4 { lock.min_replicas(2) } else { lock };
        async move { lock.acquire().await.unwrap() }
    });
    let mut plain = soon("grants", futures_util::future::join_all(grants)).await;
    let wary = plain.remove(4);
    servers.pause();
    assert_eq!(soon("it is lost", wary.lost()).await, Loss::Expired);
    for guard in &plain {
        assert!(guard.is_held(), "{} was lost, too: {:?}", guard.name(), guard.renewal_failure());
    }
    servers.resume();
    for guard in plain {
        guard.release().await.unwrap();
    }
    drop(wary);
    end([a], &[&servers.master]).await;
}
