//! `refuse_deadlock`, on a driven clock.

use std::time::Duration;

use tenure::{Error, ErrorKind, Guard, Session};
use tokio::task::JoinHandle;

use crate::common::{World, now, settle};
use crate::ring::wait_for;

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(50);

type Waiting = JoinHandle<Result<Guard, Error>>;

async fn waits(session: &Session, name: &str) -> Waiting {
    let waiting = wait_for(session, name);
    still_waits(&waiting).await;
    waiting
}

async fn still_waits(waiting: &Waiting) {
    settle().await;
    assert!(!waiting.is_finished());
}

async fn ends(what: &str, waiting: Waiting) -> Result<Guard, Error> {
    now(what, waiting).await.unwrap()
}

#[tokio::test]
async fn it_is_refused_after_a_second_naming_the_cycle() {
    let world = World::new();
    let (one, other) = (world.client("a").session(), world.client("b").session().refuse_deadlock());
    let _x = one.lock("x").acquire().await.unwrap();
    let y = other.lock("y").acquire().await.unwrap();
    // The one that came last has not asked for it.
    let asked = waits(&other, "x").await;
    world.pass(SECOND / 2).await;
    let not_asked = waits(&one, "y").await;
    world.pass(SECOND / 2 - MOMENT).await;
    still_waits(&asked).await;
    world.pass(MOMENT).await;
    let refused = ends("it asked for it", asked).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Deadlock);
    assert!(refused.to_string().contains("b waits for x, held by a; a waits for y, held by b"), "{refused}");
    world.pass(SECOND * 20).await;
    still_waits(&not_asked).await;
    drop(y);
    drop(ends("the other goes on", not_asked).await.unwrap());
}

#[tokio::test]
async fn of_two_clients_that_asked_the_one_that_came_last_is_refused() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let (one, other) = (a.session().refuse_deadlock(), b.session().refuse_deadlock());
    let _x = one.lock("x").acquire().await.unwrap();
    let y = other.lock("y").acquire().await.unwrap();
    let first = waits(&one, "y").await;
    world.pass(MOMENT).await;
    let last = waits(&other, "x").await;
    world.pass(SECOND).await;
    let refused = ends("the one that came last", last).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Deadlock);
    // It looks again and again, and finds nothing any more.
    world.pass(SECOND * 10).await;
    still_waits(&first).await;
    assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 0);
    drop(y);
    drop(ends("the other goes on", first).await.unwrap());
}

#[tokio::test]
async fn it_looks_again_at_doubling_pauses() {
    let world = World::new();
    let (one, other) = (world.client("a").session(), world.client("b").session().refuse_deadlock());
    let _x = one.lock("x").acquire().await.unwrap();
    let _y = other.lock("y").acquire().await.unwrap();
    let asked = waits(&other, "x").await;
    // Looked at 1 s, then at 3 s, then at 7 s.
    world.pass(SECOND * 4).await;
    still_waits(&asked).await;
    let _closes = waits(&one, "y").await;
    world.pass(SECOND * 3 - MOMENT).await;
    still_waits(&asked).await;
    world.pass(MOMENT * 2).await;
    assert_eq!(ends("at the third look", asked).await.unwrap_err().kind(), ErrorKind::Deadlock);
}

#[tokio::test]
async fn who_only_hangs_on_a_deadlock_is_not_refused() {
    let world = World::new();
    let tenure = world.client("a");
    let (one, other, outsider) = (tenure.session(), tenure.session(), tenure.session().refuse_deadlock());
    let _x = one.lock("x").acquire().await.unwrap();
    let _y = other.lock("y").acquire().await.unwrap();
    let _members = (waits(&one, "y").await, waits(&other, "x").await);
    let hangs_on = waits(&outsider, "x").await;
    world.pass(SECOND * 20).await;
    still_waits(&hangs_on).await;
}

#[tokio::test]
async fn one_look_serves_all_who_wait() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let holder = world.client("b");
    let _held = holder.lock("x").acquire().await.unwrap();
    let session = tenure.session().refuse_deadlock();
    let mut all = Vec::new();
    for _ in 0..50 {
        all.push(waits(&session, "x").await);
    }
    let before = gate.looks();
    world.pass(SECOND + MOMENT * 4).await;
    assert!(all.iter().all(|waiting| !waiting.is_finished()));
    let looks = gate.looks() - before;
    assert!((1..=2).contains(&looks), "{looks} looks for fifty");
}

#[tokio::test]
async fn a_wait_that_is_over_is_no_deadlock() {
    let world = World::new();
    let (one, other) = (world.client("a").session(), world.client("b").session().refuse_deadlock());
    let _x = one.lock("x").acquire().await.unwrap();
    let _y = other.lock("y").acquire().await.unwrap();
    let _closes = waits(&one, "y").await;
    let lock = other.lock("x");
    let error = world.drive("the wait", lock.acquire_within(SECOND / 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}
