//! The whole engine over stores that lose requests, replies and news: leases stay exclusive, tokens grow.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::Backend;
use tenure::backends::memory::MemoryStore;
use tenure::clock::SystemClock;
use tenure::fence::Gate;
use tenure::{Guard, Tenure};
use tenure_testkit::{Faults, Unreliable};

const CLIENTS: u64 = 4;
const TASKS: usize = 3;
const TURNS: usize = 12;
const TTL: Duration = Duration::from_millis(400);

/// The holder's place, as a second witness of exclusion beside the store.
#[derive(Default)]
struct Place(Mutex<Option<Arc<Guard>>>);

impl Place {
    fn enter(&self, guard: &Arc<Guard>) {
        let before = self.0.lock().unwrap().replace(guard.clone());
        if let Some(before) = before {
            assert!(!before.is_held() || !guard.is_held(), "two valid leases: {before:?} and {guard:?}");
        }
    }

    fn leave(&self, guard: &Arc<Guard>) {
        let mut place = self.0.lock().unwrap();
        if place.as_ref().is_some_and(|occupant| Arc::ptr_eq(occupant, guard)) {
            *place = None;
        }
    }
}

async fn contend(seed: u64, open: impl Fn() -> Arc<dyn Backend>) {
    eprintln!("seed {seed}");
    let place = Arc::new(Place::default());
    let book = Arc::new(Gate::new(0_u32));
    let mut tasks = Vec::new();
    for client in 0..CLIENTS {
        let backend = Arc::new(Unreliable::new(open(), Faults::default(), seed.wrapping_add(client)));
        let tenure = Tenure::over(backend, Arc::new(SystemClock), format!("client-{client}"));
        for _ in 0..TASKS {
            let (tenure, place, book) = (tenure.clone(), place.clone(), book.clone());
            tasks.push(tokio::spawn(async move {
                let mut written = 0;
                for _ in 0..TURNS {
                    let Ok(guard) = tenure.lock("x").ttl(TTL).acquire_within(Duration::from_secs(20)).await else {
                        continue;
                    };
                    let guard = Arc::new(guard);
                    place.enter(&guard);
                    tokio::task::yield_now().await;
                    written += u32::from(book.write(&guard, |count| *count += 1).is_ok());
                    place.leave(&guard);
                    drop(guard);
                }
                written
            }));
        }
    }
    let mut written = 0;
    for task in tasks {
        written += task.await.unwrap();
    }
    assert!(written > 0);
    let book = Arc::into_inner(book).unwrap();
    assert_eq!(book.into_inner(), written, "no update was lost");
}

fn seed() -> u64 {
    std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    let store = MemoryStore::new();
    contend(seed(), || Arc::new(store.client())).await;
}

#[cfg(all(feature = "sqlite", target_os = "linux"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    use tenure::backends::sqlite::SqliteBackend;
    let directory = tempfile::tempdir().unwrap();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let path = directory.path().join("locks.db");
        clients.push(Arc::new(SqliteBackend::open(path, Arc::new(SystemClock)).await.unwrap()));
    }
    let clients = Mutex::new(clients);
    contend(seed(), || clients.lock().unwrap().pop().unwrap()).await;
}
