//! The workloads over a lock that keeps book of what is asked of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeSet, HashSet};
use std::future::pending;
use std::sync::{Arc, Mutex};

use tenure_load::order::{Hot, Leases, Pairs, Target};
use tenure_load::{BoxError, Locker, epoch_micros, hot, leases, pairs};

/// What the book says.
#[derive(Debug, Default)]
struct Book {
    names: BTreeSet<String>,
    held: HashSet<String>,
    acquired: u64,
    asking: usize,
    asking_max: usize,
    stingy: bool,
}

/// A lock that keeps book. A name ending in `7` is lost at once, one ending in `bad` fails, one ending in `once` is
/// granted once and never again; `l/2` is not granted at all if the book says so, and the release of one ending in
/// `stuck` hangs.
#[derive(Clone, Debug, Default)]
struct Booked(Arc<Mutex<Book>>);

#[derive(Debug)]
struct Held(String, Booked);

impl Drop for Held {
    fn drop(&mut self) {
        self.1.book(|book| book.held.remove(&self.0));
    }
}

impl Booked {
    fn book<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }
}

impl Locker for Booked {
    type Held = Held;

    async fn acquire(&self, name: &str) -> Result<Held, BoxError> {
        if name.ends_with("bad") {
            return Err("no such lock".into());
        }
        let again = self.book(|book| {
            book.asking += 1;
            book.asking_max = book.asking_max.max(book.asking);
            !book.names.insert(name.to_owned())
        });
        if again && name.ends_with("once") || name == "l/2" && self.book(|book| book.stingy) {
            pending::<()>().await;
        }
        tokio::task::yield_now().await;
        self.book(|book| {
            book.asking -= 1;
            book.acquired += 1;
            assert!(book.held.insert(name.to_owned()), "{name} is held by two");
        });
        Ok(Held(name.to_owned(), self.clone()))
    }

    async fn release(&self, held: Held) -> Result<(), BoxError> {
        tokio::task::yield_now().await;
        if held.0.ends_with("stuck") {
            pending::<()>().await;
        }
        drop(held);
        Ok(())
    }

    fn is_held(&self, held: &Held) -> bool {
        !held.0.ends_with('7')
    }
}

fn target() -> Target {
    Target { peer: "booked".to_owned(), store: "none".to_owned(), urls: vec![], ttl_ms: 1_000 }
}

fn pairs_order(seconds: f64) -> Pairs {
    Pairs { target: target(), tasks: 3, names: 2, prefix: "p".to_owned(), warmup_s: 0.01, seconds }
}

fn hot_order(name: &str, seconds: f64) -> Hot {
    Hot { target: target(), tasks: 4, name: name.to_owned(), prefix: "h".to_owned(), warmup_pairs: 20, seconds }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_go_round_the_names_of_each_task() {
    let lock = Booked::default();
    let result = pairs::run(&lock, &pairs_order(0.1), pending()).await.unwrap().unwrap();
    lock.book(|book| {
        assert!(result.pairs < result.all, "those of the warm-up are not counted");
        assert_eq!(result.all, book.acquired);
        assert!(book.names.iter().all(|name| ["p/0/", "p/1/", "p/2/"].iter().any(|task| name.starts_with(task))));
        assert!(book.names.iter().all(|name| name.ends_with("/0") || name.ends_with("/1")), "{:?}", book.names);
        assert!(book.held.is_empty());
    });
    assert!(result.p50_us <= result.p99_us && result.p99_us <= result.max_us);
    assert_eq!(result.seconds, 0.1);
}

#[tokio::test]
async fn pairs_of_no_time_are_none_and_have_no_median() {
    let result = pairs::run(&Booked::default(), &pairs_order(0.0), pending()).await.unwrap().unwrap();
    assert_eq!((result.pairs, result.p50_us, result.max_us), (0, None, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_told_to_stop_holds_nothing_afterwards() {
    let lock = Booked::default();
    let at_work = async {
        while lock.book(|book| book.acquired < 10) {
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(pairs::run(&lock, &pairs_order(600.0), at_work).await.unwrap(), None);
    lock.book(|book| assert!(book.held.is_empty()));

    let lock = Booked::default();
    let at_work = async {
        while lock.book(|book| book.held.is_empty()) {
            tokio::task::yield_now().await;
        }
    };
    let order = Hot { tasks: 1, ..hot_order("stuck", 600.0) };
    assert!(hot::run(&lock, &order, epoch_micros(), at_work).await.unwrap().is_none());
    lock.book(|book| assert!(book.held.is_empty()));
}

#[tokio::test]
async fn the_first_error_ends_it() {
    let lock = Booked::default();
    let order = hot_order("bad", 600.0);
    assert_eq!(hot::run(&lock, &order, epoch_micros(), pending()).await.unwrap_err().to_string(), "no such lock");
    let order = Hot { tasks: 1, ..order };
    assert!(hot::warm_up(&lock, &order).await.is_ok(), "its own name is good");
}

#[tokio::test]
async fn turns_and_waits_are_told_while_tasks_still_wait() {
    let lock = Booked::default();
    let order = hot_order("once", 1.0);
    let (result, crowd) = hot::run(&lock, &order, epoch_micros(), pending()).await.unwrap().unwrap();
    assert_eq!(result.turns.len(), 1);
    let (got, wait, task) = result.turns[0];
    assert!(wait <= got && task < 4, "{result:?}");
    let mut waiting: Vec<usize> = result.waiting.iter().map(|(task, _)| *task).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, [0, 1, 2, 3], "the one that had it asks again");
    crowd.end().await;
    lock.book(|book| assert!(book.held.is_empty()));
}

#[tokio::test]
async fn the_warm_up_is_on_a_name_of_its_own() {
    let lock = Booked::default();
    hot::warm_up(&lock, &hot_order("x", 1.0)).await.unwrap();
    lock.book(|book| {
        assert_eq!((book.acquired, book.names.len()), (20, 1));
        assert_eq!(book.names.first().unwrap(), &format!("h/warm-up/{}", std::process::id()));
    });
}

fn leases_order(leases: usize) -> Leases {
    Leases { target: target(), leases, prefix: "l".to_owned(), seconds: 0.0 }
}

#[tokio::test]
async fn every_lease_is_taken_and_no_more_than_256_at_a_time() {
    let lock = Booked::default();
    let (mut held, mut all) = (Vec::new(), false);
    let result = leases::run(&lock, &leases_order(1_000), &mut held, || all = true, pending()).await.unwrap().unwrap();
    assert!(all);
    // Those whose number ends in 7 were lost.
    assert_eq!((result.leases, result.held, held.len()), (1_000, 900, 1_000));
    lock.book(|book| {
        assert_eq!(book.names, (0..1_000).map(|number| format!("l/{number}")).collect());
        assert_eq!((book.acquired, book.held.len()), (1_000, 1_000));
        assert_eq!(book.asking_max, 256);
    });
    leases::release(&lock, held).await.unwrap();
    lock.book(|book| assert!(book.held.is_empty()));
}

#[tokio::test]
async fn leases_that_are_not_all_taken_are_dropped_or_handed_out() {
    let lock = Booked::default();
    lock.book(|book| book.stingy = true);
    let others_done = async {
        while lock.book(|book| book.acquired < 2) {
            tokio::task::yield_now().await;
        }
        // Each of these is a turn for the tasks to end in.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    };
    let mut held = Vec::new();
    let order = leases_order(3);
    assert_eq!(leases::run(&lock, &order, &mut held, || {}, others_done).await.unwrap(), None);
    lock.book(|book| assert_eq!(book.held.len(), held.len()));
    assert!(!held.is_empty());
}
