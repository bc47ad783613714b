//! Rows that somebody from outside keeps locked: each holds its own name up, and no other.

use std::sync::Arc;

use tenure::Name;
use tenure::backend::{Backend as _, ClaimRequest, Claimed, ReleaseRequest, Released, RenewRequest, Renewed, Standing};
use tenure::backends::postgres::PostgresBackend;
use tenure::clock::SystemClock;
use tenure_testkit::servers::Postgres;

use crate::support::{LONG, name, request, soon, until};

/// Somebody who has locked rows, until told to let go.
pub(crate) struct Keeper {
    server: Arc<Postgres>,
    kept: tokio::task::JoinHandle<String>,
}

impl Keeper {
    pub(crate) async fn of(server: &Arc<Postgres>, statement: &'static str) -> Self {
        let keeper = server.clone();
        let kept = tokio::task::spawn_blocking(move || {
            keeper.psql(&format!("BEGIN; {statement}; SELECT pg_sleep(60); COMMIT"))
        });
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        until("they are locked", async || server.psql(asleep) == "1").await;
        Self { server: server.clone(), kept }
    }

    pub(crate) async fn lets_go(&mut self) {
        self.end();
        assert!((&mut self.kept).await.is_err(), "psql tells that it was ended");
    }

    fn end(&self) {
        self.server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
    }
}

impl Drop for Keeper {
    // A test that fails must not wait for it.
    fn drop(&mut self) {
        self.end();
    }
}

async fn open(server: &Postgres) -> Arc<PostgresBackend> {
    let backend = PostgresBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    backend.listen(Arc::new(|_| {}));
    Arc::new(backend)
}

/// Asks at once, and again while it is not answered: whoever waits in turn with others is not let wait for long.
fn insist(backend: &Arc<PostgresBackend>, which: &Name, wish: ClaimRequest) -> tokio::task::JoinHandle<Claimed> {
    let (backend, which) = (backend.clone(), which.clone());
    let mut call = backend.claim(&which, wish.clone());
    tokio::spawn(async move {
        loop {
            match call.await {
                Ok(answer) => return answer.value,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            call = backend.claim(&which, wish.clone());
        }
    })
}

fn is_granted(claimed: &Claimed) -> bool {
    matches!(claimed, Claimed::Stands(Standing { state: Ok(_), .. }))
}

// One thread: what is asked for without a pause in between is pending together.
#[tokio::test]
async fn a_row_that_somebody_keeps_locked_holds_its_own_name_up() {
    let server = Arc::new(Postgres::start());
    let backend = open(&server).await;
    let (mut renewals, mut number) = (Vec::new(), 0);
    // More than there are connections to wait on.
    let stuck: Vec<_> = (0..8).map(|at| name(&format!("x{at}"))).collect();
    let held: Vec<_> = (0..4).map(|at| name(&format!("y{at}"))).collect();
    for name in stuck.iter().chain(&held) {
        let claim = request(number);
        renewals.push(RenewRequest { ttl: LONG, ..RenewRequest::of(name, &claim) });
        assert!(is_granted(&soon("a claim", backend.claim(name, claim)).await.unwrap().value));
        number += 1;
    }
    soon("a release", backend.release(&held[0], ReleaseRequest::new(renewals[8].owner.clone(), renewals[8].id)))
        .await
        .unwrap();
    let mut keeper = Keeper::of(&server, "SELECT FROM tenure.names WHERE name LIKE 'x%' FOR UPDATE").await;
    let mut held_up = Vec::new();
    let mut free = Vec::new();
    for (at, stuck) in stuck.iter().enumerate() {
        held_up.push(insist(&backend, stuck, request(100 + at as u64)));
        free.push(backend.claim(&name(&format!("new{at}")), request(200 + at as u64)));
    }
    free.push(backend.claim(&held[0], request(300)));
    let renewed = backend.renew(renewals.clone(), false);
    let single = backend.renew(vec![renewals[9].clone()], false);
    let released = backend.release(&held[3], ReleaseRequest::new(renewals[11].owner.clone(), renewals[11].id));
    for claim in free {
        assert!(is_granted(&soon("another name", claim).await.unwrap().value));
    }
    assert_eq!(soon("a release", released).await.unwrap(), Released::Yes);
    let single = soon("a renewal", single).await.unwrap().value;
    assert!(matches!(&single[..], [Renewed::Stands(_)]), "{single:?}");
    let renewed = soon("renewals", renewed).await.unwrap().value;
    assert!(renewed[..8].iter().all(|answer| matches!(answer, Renewed::Unknown(_))), "{renewed:?}");
    assert!(renewed[9..11].iter().all(|answer| matches!(answer, Renewed::Stands(_))), "{renewed:?}");
    // Asked for again, apart from them, and on a connection of its own.
    let again = backend.renew(vec![renewals[10].clone()], true);
    let again = soon("a renewal", again).await.unwrap().value;
    assert!(matches!(&again[..], [Renewed::Stands(_)]), "{again:?}");
    assert!(held_up.iter().all(|claim| !claim.is_finished()), "what is locked waits");
    keeper.lets_go().await;
    for claim in held_up {
        let claim = soon("its place", claim).await.unwrap();
        assert!(matches!(claim, Claimed::Stands(Standing { state: Err(_), .. })), "{claim:?}");
    }
    let renewed = soon("renewals", backend.renew(renewals[..8].to_vec(), false)).await.unwrap().value;
    assert!(renewed.iter().all(|answer| matches!(answer, Renewed::Stands(_))), "{renewed:?}");
}

#[tokio::test]
async fn a_renewal_behind_others_is_done_though_those_with_it_were_answered() {
    let server = Arc::new(Postgres::start());
    let backend = open(&server).await;
    let mut renewals = Vec::new();
    for (number, which) in ["x", "y"].map(name).into_iter().enumerate() {
        let claim = request(number as u64);
        renewals.push(RenewRequest { ttl: 2 * LONG, ..RenewRequest::of(&which, &claim) });
        assert!(is_granted(&soon("a claim", backend.claim(&which, claim)).await.unwrap().value));
    }
    let mut keeper = Keeper::of(&server, "SELECT FROM tenure.names WHERE name = 'x' FOR UPDATE").await;
    let before = insist(&backend, &name("x"), request(2));
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("it waits for the row", async || server.psql(blocked) == "1").await;
    let renewed = soon("renewals", backend.renew(renewals, false)).await.unwrap().value;
    assert!(matches!(&renewed[..], [Renewed::Unknown(_), Renewed::Stands(_)]), "{renewed:?}");
    keeper.lets_go().await;
    soon("its place", before).await.unwrap();
    until("the renewal is done", async || {
        let view = backend.inspect(&name("x")).await.unwrap();
        view.holders.first().is_some_and(|holder| holder.expires_in > Some(LONG))
    })
    .await;
}

#[tokio::test]
async fn a_row_that_somebody_makes_and_does_not_commit_holds_its_own_name_up() {
    let server = Arc::new(Postgres::start());
    let backend = open(&server).await;
    let mut keeper = Keeper::of(&server, "INSERT INTO tenure.names (name, last) VALUES ('m', 1)").await;
    let held_up = insist(&backend, &name("m"), request(0));
    let free = ["a", "z"].map(|which| {
        (which, backend.claim(&name(which), request(which.len() as u64 + u64::from(which.as_bytes()[0]))))
    });
    for (which, claim) in free {
        let claimed = soon("another name", claim).await.unwrap().value;
        assert!(is_granted(&claimed), "{which}: {claimed:?}");
    }
    assert!(!held_up.is_finished());
    keeper.lets_go().await;
    let claimed = soon("its turn", held_up).await.unwrap();
    assert!(is_granted(&claimed), "{claimed:?}");
}

#[tokio::test]
async fn a_row_that_is_locked_is_neither_gone_nor_busy() {
    let server = Arc::new(Postgres::start());
    let backend = open(&server).await;
    let claims = [request(0), request(1)];
    for (which, claim) in ["x", "y"].into_iter().zip(&claims) {
        assert!(is_granted(&backend.claim(&name(which), claim.clone()).await.unwrap().value));
    }
    let mut keeper = Keeper::of(&server, "SELECT FROM tenure.names FOR UPDATE").await;
    let tried = insist(&backend, &name("x"), ClaimRequest { queue: false, ..request(2) });
    let renewed = tokio::spawn(
        backend.renew(vec![RenewRequest { ttl: LONG, ..RenewRequest::of(&name("x"), &claims[0]) }], false),
    );
    let released = tokio::spawn(backend.release(&name("y"), ReleaseRequest::of(&claims[1])));
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure' AND wait_event_type = 'Lock'";
    until("they wait", async || server.psql(waits) == "2").await;
    assert!(!tried.is_finished() && !renewed.is_finished() && !released.is_finished());
    keeper.lets_go().await;
    assert!(matches!(soon("an answer", tried).await.unwrap(), Claimed::Busy(_)));
    assert!(matches!(soon("an answer", renewed).await.unwrap().unwrap().value[..], [Renewed::Stands(_)]));
    assert_eq!(soon("an answer", released).await.unwrap().unwrap(), Released::Yes);
}

#[tokio::test]
async fn what_is_answered_together_is_done_once() {
    let server = Arc::new(Postgres::start());
    let backend = open(&server).await;
    let names: Vec<_> = (0..20).map(|at| name(&format!("n{at}"))).collect();
    for turn in 0..5 {
        let claims: Vec<_> = (0..20).map(|at| request(turn * 20 + at)).collect();
        let ends: Vec<_> = claims.iter().map(ReleaseRequest::of).collect();
        let asked: Vec<_> = names.iter().zip(claims).map(|(name, claim)| backend.claim(name, claim)).collect();
        for claimed in futures_util::future::join_all(asked).await {
            assert!(is_granted(&claimed.unwrap().value), "turn {turn}");
        }
        let asked: Vec<_> = names.iter().zip(ends).map(|(name, end)| backend.release(name, end)).collect();
        for released in futures_util::future::join_all(asked).await {
            assert_eq!(released.unwrap(), Released::Yes);
        }
    }
    assert_eq!(server.psql("SELECT count(*) FROM tenure.names WHERE id IS NOT NULL OR queue IS NOT NULL"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_stay_locked_hold_up_no_name_that_others_wait_for() {
    // As many as are waited for at a time.
    const KEPT: [&str; 3] = ["x1", "x2", "x3"];
    let server = Arc::new(Postgres::start());
    let (a, b) = (open(&server).await, open(&server).await);
    for (id, kept) in KEPT.iter().enumerate() {
        a.claim(&name(kept), request(1_000 + id as u64)).await.unwrap();
    }
    let _keeper = Keeper::of(&server, "SELECT FROM tenure.names WHERE name LIKE 'x%' FOR UPDATE").await;
    let waits: Vec<_> =
        KEPT.iter().enumerate().map(|(id, kept)| insist(&a, &name(kept), request(2_000 + id as u64))).collect();
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("they wait for the rows", async || server.psql(blocked) == "3").await;
    // Both clients know that others want it, so nobody takes it by a plain statement; each in turn has it, and lets
    // the other.
    let contended = name("contended");
    let mut holds = request(0);
    soon("a free name", a.claim(&contended, holds.clone())).await.unwrap();
    // All of them in the time that a row is waited for a few times.
    let turns = async {
        for turn in 1..60 {
            let next = request(turn);
            let (holder, waiter) = if turn % 2 == 1 { (&a, &b) } else { (&b, &a) };
            insist(waiter, &contended, next.clone()).await.unwrap();
            assert_eq!(holder.release(&contended, ReleaseRequest::of(&holds)).await.unwrap(), Released::Yes);
            holds = next;
        }
    };
    soon("sixty turns", turns).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}
