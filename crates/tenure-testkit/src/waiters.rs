//! Many waiters on one name: all are served, in the order they came, and nobody else notices.
//!
//! Every claim is one in the store: tasks with [`strict_fifo`](tenure::Lock::strict_fifo) and tasks of sessions do not
//! queue up in their process.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure::{ClaimId, ErrorKind, Guard, Lock, Tenure, Token};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long the next step of the whole may take, on a busy machine: one more waiter that stands, or is granted.
const STEP_MAX: Duration = Duration::from_secs(30);
/// The ttl of all claims. They wait for longer than that, so that a renewal that is forgotten shows.
const TTL: Duration = Duration::from_secs(10);
/// The pause between two looks at the whole queue: reading thousands of claims is work for the store too.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The pause between two pairs on other names.
const PAUSE: Duration = Duration::from_millis(5);

/// How many wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiters {
    /// How many clients there are.
    pub clients: usize,
    /// How many tasks of each wait.
    pub each: usize,
}

/// Whom the store granted the name.
type Granted = mpsc::UnboundedReceiver<(ClaimId, Option<Token>)>;

impl Waiters {
    /// Lets them wait for a held name, and be served. Where the store keeps no queue, in any order.
    ///
    /// # Panics
    ///
    /// If one is not served, served out of order or loses its place; if a lease on another name is lost, or pairs on
    /// other names come to a halt.
    pub async fn are_served(self, url: &str) {
        let mut clients = Vec::new();
        for _ in 0..self.clients {
            clients.push(Tenure::connect(url).await.expect("a client"));
        }
        let name = format!("test/{:016x}/waiters", rand::random::<u64>());
        let others = Others::begin(&clients[0], &name).await;
        let store = clients[0].capabilities();
        let held = clients[0].lock(&name).ttl(TTL).acquire().await.expect("a free name");
        let (tasks, mut granted) = self.wait(&clients, &name, store.queue);
        // A client without a task of its own, and without news.
        let looker = Tenure::connect(url).await.expect("a client");
        let stood = if store.queue { Some(self.stand(&looker, &name).await) } else { None };
        others.goes_on("while they wait", sleep(TTL + TTL / 10)).await;
        assert!(held.is_held(), "the name they wait for was lost: {:?}", held.renewal_failure());
        if let Some(stood) = &stood {
            let stand = order(&looker, &name).await;
            let lost: HashSet<_> = stood.iter().filter(|id| !stand.contains(id)).collect();
            assert!(lost.is_empty(), "{} of {} lost their place while they waited", lost.len(), stood.len());
            assert!(*stood == stand, "they changed places while they waited");
        }
        answered(held.release().await);
        let order = others.goes_on("while they are served", self.serve(&mut granted)).await;
        tasks.join_all().await;
        let rises = order.windows(2).all(|two| two[0].1 < two[1].1);
        assert!(rises || !store.tokens, "tokens do not rise from holder to holder");
        if let Some(stood) = stood {
            let order: Vec<ClaimId> = order.into_iter().map(|(id, _)| id).collect();
            let at = order.iter().zip(&stood).position(|(granted, stood)| granted != stood);
            assert_eq!(at, None, "not served in the order in which they stood: the first at this place");
        }
        others.end().await;
        for client in clients {
            client.close().await.expect("nothing is left to do");
        }
    }

    /// One task for each waiter, which says that it is granted while it holds.
    fn wait(self, clients: &[Tenure], name: &str, has_order: bool) -> (JoinSet<()>, Granted) {
        let (say, granted) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for index in 0..self.clients * self.each {
            let client = &clients[index % self.clients];
            let lock = match index / self.clients % 2 {
                // Without a queue tasks do not share a claim anyway.
                _ if !has_order => client.lock(name),
                0 => client.lock(name).strict_fifo(),
                _ => client.session().lock(name),
            };
            let (lock, say) = (lock.ttl(TTL), say.clone());
            tasks.spawn(async move {
                let guard = loop {
                    // A store that takes its time is asked again; whether it takes too long is seen from how they
                    // come on.
                    match lock.acquire().await {
                        Err(error) if is_slow(&error) => {}
                        other => break other.expect("a claim that can be granted"),
                    }
                };
                let _ = say.send((guard.shown().1, guard.token()));
                answered(guard.release().await);
            });
        }
        (tasks, granted)
    }

    /// Waits until all stand in the queue; their order.
    async fn stand(self, client: &Tenure, name: &str) -> Vec<ClaimId> {
        let (all, mut most) = (self.clients * self.each, 0);
        loop {
            let more = timeout(STEP_MAX, async {
                loop {
                    let stand = order(client, name).await;
                    if stand.len() == all || stand.len() > most {
                        return stand;
                    }
                    sleep(LOOK_EVERY).await;
                }
            });
            let stand = more.await.unwrap_or_else(|_| panic!("only {most} of {all} stand in the queue"));
            if stand.len() == all {
                return stand;
            }
            most = stand.len();
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until all were granted; their order.
    async fn serve(self, granted: &mut Granted) -> Vec<(ClaimId, Option<Token>)> {
        let (all, mut order) = (self.clients * self.each, Vec::new());
        while order.len() < all {
            let next = timeout(STEP_MAX, granted.recv()).await;
            let next = next.unwrap_or_else(|_| panic!("only {} of {all} were served", order.len()));
            order.push(next.expect("those who were not served wait"));
        }
        order
    }
}

/// Those who wait, in order.
async fn order(client: &Tenure, name: &str) -> Vec<ClaimId> {
    let view = loop {
        match client.inspect(name).await {
            Err(error) if is_slow(&error) => {}
            other => break other.expect("a name that can be looked at"),
        }
    };
    view.waiters.into_iter().map(|waiter| waiter.claim.0).collect()
}

/// A release of what is held, which goes on by itself if the store takes its time.
fn answered(released: tenure::Result<()>) {
    if let Err(error) = released {
        assert!(is_slow(&error), "{error}");
    }
}

/// Whether the store, or most nodes of a fleet, took too long.
fn is_slow(error: &tenure::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Quorum)
}

/// What the same client does with other names meanwhile: it holds one, and takes and releases others.
struct Others {
    held: Guard,
    pairs: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Others {
    async fn begin(client: &Tenure, name: &str) -> Self {
        let held = client.lock(format!("{name}/held")).ttl(TTL).acquire().await.expect("a free name");
        let (pairs, enough): (Arc<AtomicUsize>, Arc<AtomicBool>) = Default::default();
        let (client, name, counted, over) = (client.clone(), name.to_owned(), pairs.clone(), enough.clone());
        let task = tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let turn = counted.load(Ordering::Relaxed);
                let lock = client.lock(format!("{name}/pair/{}", turn % 8)).ttl(TTL);
                timeout(STEP_MAX, pair(lock, turn % 2 == 0)).await.expect("a pair on another name comes to its end");
                counted.fetch_add(1, Ordering::Relaxed);
                sleep(PAUSE).await;
            }
        });
        Self { held, pairs, enough, task }
    }

    /// Does the work, during which the lease is held and at least one more pair comes to its end.
    async fn goes_on<T>(&self, when: &str, work: impl Future<Output = T>) -> T {
        let before = self.pairs.load(Ordering::Relaxed);
        let done = tokio::select! {
            done = work => done,
            loss = self.held.lost() => panic!("the lease on another name was lost {when}: {loss}"),
        };
        let more = async {
            while self.pairs.load(Ordering::Relaxed) == before && !self.task.is_finished() {
                sleep(PAUSE).await;
            }
        };
        timeout(STEP_MAX, more).await.unwrap_or_else(|_| panic!("pairs on other names came to a halt {when}"));
        assert!(!self.task.is_finished(), "a pair on another name failed {when}");
        done
    }

    async fn end(self) {
        self.enough.store(true, Ordering::Relaxed);
        self.task.await.expect("every pair came to its end");
        self.held.release().await.expect("held all the time");
    }
}

/// Takes a free name and releases it.
async fn pair(lock: Lock, at_once: bool) {
    let guard = loop {
        let taken = if at_once { lock.try_acquire().await } else { lock.acquire().await.map(Some) };
        match taken {
            Ok(Some(guard)) => break guard,
            // Its last release may still be on its way.
            Ok(None) => sleep(PAUSE).await,
            Err(error) => assert!(is_slow(&error), "{error}"),
        }
    };
    answered(guard.release().await);
}

/// Makes the tests of many waiters on one store: small ones for the gate, and those of the full size for the night.
///
/// `$url` names a function that answers the store's URL for so many clients, and what is kept as long as it is used:
/// `fn(clients: usize) -> (String, impl Sized)`. `$of_one`: how many of one client the small test has.
#[macro_export]
macro_rules! waiters {
    ($store:ident, $url:expr, $of_one:expr) => {
        mod $store {
            #[allow(unused_imports)] // it may be a path
            use super::*;

            #[test]
            fn of_one_client() {
                $crate::run_waiters(1, $of_one, $url);
            }

            #[test]
            fn of_several_clients() {
                $crate::run_waiters(8, 15, $url);
            }

            #[test]
            #[ignore = "night: 5,000 hand-overs"]
            fn five_thousand_of_one_client() {
                $crate::run_waiters(1, 5_000, $url);
            }

            #[test]
            #[ignore = "night: 6,400 hand-overs"]
            fn a_hundred_of_each_of_64_clients() {
                $crate::run_waiters(64, 100, $url);
            }
        }
    };
}
