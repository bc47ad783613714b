//! Sessions, read-write locks and semaphores, as a program sees them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use common::{World, now, settle, still_pending};
use tenure::fence::{Gate, Refused};
use tenure::{ErrorKind, Owner};

#[tokio::test]
async fn a_session_re_enters_and_ends_with_its_last_guard() {
    let world = World::new();
    let tenure = world.client("a");
    let session = tenure.session();
    let outer = session.lock("x").acquire().await.unwrap();
    let inner = session.lock("x").try_acquire().await.unwrap().unwrap();
    assert_eq!(outer.token(), inner.token());
    drop(outer);
    assert!(tenure.lock("x").try_acquire().await.unwrap().is_none());
    drop(inner);
    assert!(tenure.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_session_goes_on_in_another_process() {
    let world = World::new();
    let session = world.client("a").session();
    let outer = session.lock("x").acquire().await.unwrap();
    let elsewhere = world.client("b").session_as(session.owner().clone());
    let inner = elsewhere.lock("x").reenter(outer.token().unwrap()).try_acquire().await.unwrap().unwrap();
    assert_eq!(inner.token(), outer.token());
    let token = outer.token().unwrap();
    drop((outer, inner));
    let error = elsewhere.lock("x").reenter(token).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
}

#[tokio::test]
async fn an_upgrade_is_refused_and_a_downgrade_is_not() {
    let world = World::new();
    let tenure = world.client("a");
    let session = tenure.session();
    let table = session.rwlock("x");
    let read = table.read().acquire().await.unwrap();
    let error = table.write().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    drop(read);

    let write = table.write().acquire().await.unwrap();
    let read = table.read().acquire().await.unwrap();
    let other = tenure.rwlock("x").read();
    let mut reader = Box::pin(other.acquire());
    still_pending(reader.as_mut()).await;
    drop(write);
    drop(now("another reader, once the writer is gone", reader).await.unwrap());
    drop(read);
}

#[tokio::test]
async fn a_mutex_is_the_writer_of_a_read_write_lock() {
    let world = World::new();
    let tenure = world.client("a");
    let _read = tenure.rwlock("x").read().acquire().await.unwrap();
    let _read_too = tenure.rwlock("x").read().acquire().await.unwrap();
    assert!(tenure.lock("x").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_semaphore_counts_units_and_refuses_another_number() {
    let world = World::new();
    let tenure = world.client("a");
    let _two = tenure.semaphore("x", 3).units(2).acquire().await.unwrap();
    assert!(tenure.semaphore("x", 3).units(2).try_acquire().await.unwrap().is_none());
    let _one = tenure.semaphore("x", 3).acquire().await.unwrap();
    let error = tenure.semaphore("x", 4).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let message = error.to_string();
    assert!(message.contains("of 3 permits") && message.contains("of 4 permits"), "{message}");
    let message = tenure.lock("x").try_acquire().await.unwrap_err().to_string();
    assert!(message.contains("of 3 permits") && message.contains("exclusive"), "{message}");
}

#[tokio::test]
async fn a_gate_takes_writers_and_readers_but_no_permits() {
    let world = World::new();
    let tenure = world.client("a");
    let gate = Gate::new(0);
    let writer = tenure.lock("x").acquire().await.unwrap();
    gate.write(&writer, |n| *n += 1).unwrap();
    drop(writer);
    let reader = tenure.rwlock("x").read().acquire().await.unwrap();
    assert_eq!(gate.read(&reader, |n| *n), Ok(1));
    assert!(matches!(gate.write(&reader, |n| *n += 1), Err(Refused::Shape(_))));
    let permit = tenure.semaphore("y", 2).acquire().await.unwrap();
    assert!(matches!(gate.read(&permit, |n| *n), Err(Refused::Shape(_))));
}

#[tokio::test]
async fn a_claim_left_to_its_owner_is_renewed_and_released_by_it_alone() {
    let world = World::new();
    let tenure = world.client("a");
    let [owner, stranger] = ["script", "stranger"].map(|owner| Owner::new(owner).unwrap());
    let lock = tenure.session_as(owner.clone()).lock("x").no_renewal().repeatable();
    let left = lock.acquire().await.unwrap().leave();
    let again = world.client("b").session_as(owner.clone()).lock("x").no_renewal().repeatable();
    let repeated = again.try_acquire().await.unwrap().unwrap().leave();
    assert_eq!(left.token, repeated.token, "the same attempt again is a retry");
    assert_eq!(tenure.renew_as("x", &owner, None).await.unwrap().token, left.token);
    assert_eq!(tenure.renew_as("x", &stranger, None).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!tenure.release_as("x", &stranger).await.unwrap());
    assert!(tenure.release_as("x", &owner).await.unwrap());
    assert!(!tenure.release_as("x", &owner).await.unwrap());
    assert!(tenure.inspect("x").await.unwrap().is_free());
}

#[tokio::test]
async fn several_names_are_held_together_or_not_at_all() {
    let world = World::new();
    let tenure = world.client("a");
    let one = world.client("b").lock("n").acquire().await.unwrap();
    assert!(tenure.lock_all(["z", "n", "a"]).try_acquire().await.unwrap().is_none());
    assert!(tenure.lock("a").try_acquire().await.unwrap().is_some(), "what was taken is given back");

    let all = tenure.lock_all(["z", "n", "a", "z"]);
    let mut waiting = Box::pin(all.acquire());
    still_pending(waiting.as_mut()).await;
    assert!(tenure.lock("z").try_acquire().await.unwrap().is_some(), "taken in order: not yet the last");
    drop(one);
    let held = now("all", waiting).await.unwrap();
    let names: Vec<_> = held.guards().iter().map(|guard| guard.name().as_str()).collect();
    assert_eq!(names, ["a", "n", "z"]);
    world.client("admin").break_holders("n", None, "why").await.unwrap();
    let (guard, _) = now("the loss", held.lost()).await;
    assert_eq!(guard.name().as_str(), "n");
    let error = held.protect(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::Lost, "n"));
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(tenure.list("").await.unwrap().is_empty(), "the others are released all the same");
}

#[tokio::test]
async fn a_key_has_one_stripe() {
    let world = World::new();
    let (a, b) = (world.client("a").striped("cart", 8), world.client("b").striped("cart", 8));
    let _held = a.of(42).acquire().await.unwrap();
    assert!(b.of("42").try_acquire().await.unwrap().is_none());
    let mut free = 0;
    for key in 0..100 {
        free += usize::from(b.of(key).try_acquire().await.unwrap().is_some());
    }
    assert!((70..100).contains(&free), "most keys have another stripe: {free}");
}

#[tokio::test]
async fn several_names_are_not_reported_held_if_one_was_lost_meanwhile() {
    let world = World::new();
    let tenure = world.client("a");
    let in_the_way = world.client("b").lock("n").acquire().await.unwrap();
    let all = tenure.lock_all(["a", "n"]);
    let mut waiting = Box::pin(all.acquire());
    still_pending(waiting.as_mut()).await;
    world.client("admin").break_holders("a", None, "").await.unwrap();
    drop(in_the_way);
    let error = now("all", waiting).await.unwrap_err();
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::Lost, "a"));
    assert!(tenure.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_writer_becomes_a_reader_without_a_gap() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let table = a.session().rwlock("table");
    let writer = table.write().acquire().await.unwrap();
    let token = writer.token();
    let others = b.rwlock("table");
    let (reader, writes) = (others.read(), others.write());
    let mut reader = std::pin::pin!(reader.acquire());
    still_pending(reader.as_mut()).await;
    let mut writes = std::pin::pin!(writes.acquire());
    still_pending(writes.as_mut()).await;
    let downgraded = now("the downgrade", table.downgrade(writer)).await.unwrap();
    assert_eq!((downgraded.shape(), downgraded.token()), (tenure::Shape::Shared, token));
    let reader = now("the reader", reader).await.unwrap();
    still_pending(writes.as_mut()).await;
    assert!(downgraded.is_held() && reader.is_held());
    let upgrade = table.write().try_acquire().await.unwrap_err();
    assert_eq!(upgrade.kind(), ErrorKind::Conflict, "{upgrade}");
    drop((downgraded, reader));
    now("the next writer", writes).await.unwrap().release().await.unwrap();

    let outside = a.rwlock("table").write().acquire().await.unwrap();
    assert_eq!(table.downgrade(outside).await.unwrap_err().kind(), ErrorKind::Invalid);
    settle().await;
    assert!(a.inspect("table").await.unwrap().is_free(), "nothing is held after a refusal");
}
