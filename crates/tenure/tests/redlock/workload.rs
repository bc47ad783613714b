//! A fenced resource that several clients use one after the other, and what must be true of it afterwards.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::clock::Moment;
use tenure::fence::Gate;
use tenure::{ErrorKind, Tenure, Token};
use tokio::task::JoinHandle;

use crate::support::{LIMIT, TTL, connect, patiently, until};

const NAME: &str = "resource";
/// How many operations each holder does.
const OPERATIONS: usize = 3;
/// However long the test takes, nobody does more.
const TURNS_MAX: usize = 10_000;

/// What is protected: a counter, and by which token each of its changes was made.
#[derive(Default)]
struct Ledger {
    counter: usize,
    changes: Vec<Token>,
}

/// One holding, as its holder saw it.
#[derive(Clone, Copy, Debug)]
struct Holding {
    asked: Moment,
    granted: Moment,
    /// Until when it was trusted.
    until: Moment,
    token: Token,
}

#[derive(Default)]
struct Record {
    holdings: Mutex<Vec<Holding>>,
    begun: AtomicUsize,
    accepted: AtomicUsize,
    refused: AtomicUsize,
    failures: Mutex<Vec<String>>,
    over: AtomicBool,
}

/// Clients at work.
pub(crate) struct Workload {
    pub(crate) clients: Vec<Tenure>,
    gate: Arc<Gate<Ledger>>,
    record: Arc<Record>,
    tasks: Vec<JoinHandle<()>>,
}

/// What came of it.
pub(crate) struct History {
    pub(crate) clients: Vec<Tenure>,
    holdings: Vec<Holding>,
}

impl Workload {
    pub(crate) async fn begin(url: &str, count: usize) -> Self {
        let (gate, record) = (Arc::new(Gate::new(Ledger::default())), Arc::new(Record::default()));
        let mut this = Self { clients: Vec::new(), gate, record, tasks: Vec::new() };
        for _ in 0..count {
            let client = connect(url).await;
            this.tasks.push(tokio::spawn(work(client.clone(), this.gate.clone(), this.record.clone())));
            this.clients.push(client);
        }
        this
    }

    /// Returns when so many more have held it, who all asked after now.
    pub(crate) async fn more(&self, count: usize) {
        let goal = self.record.begun.load(Ordering::SeqCst) + self.clients.len() + count;
        let reached = async || {
            assert!(self.tasks.iter().all(|task| !task.is_finished()), "a client has failed");
            self.record.begun.load(Ordering::SeqCst) >= goal
        };
        let failures = self.record.failures.lock().unwrap().len();
        let what = format!("{count} more holdings, after {failures} failures");
        until(&what, reached).await;
    }

    /// Ends it, and checks all but that leases did not overlap.
    pub(crate) async fn end(self) -> History {
        let Self { clients, gate, record, tasks } = self;
        record.over.store(true, Ordering::SeqCst);
        for task in tasks {
            patiently("the end of a client", task).await.unwrap();
        }
        let ledger = Arc::into_inner(gate).expect("nobody else has it").into_inner();
        let accepted = record.accepted.load(Ordering::SeqCst);
        assert_eq!(ledger.counter, accepted, "updates were lost");
        assert_eq!(ledger.changes.len(), accepted, "changes that nobody knows of");
        assert!(ledger.changes.is_sorted(), "tokens that went back");
        let holdings = record.holdings.lock().unwrap().clone();
        let refused = record.refused.load(Ordering::SeqCst);
        let failures = record.failures.lock().unwrap();
        println!("{} holdings, {refused} refused operations, {} failed attempts", holdings.len(), failures.len());
        let history = History { clients, holdings };
        history.check_tokens();
        history
    }
}

impl History {
    /// Tokens are nobody else's, and whoever asked later has the larger one.
    fn check_tokens(&self) {
        let mut sorted = self.holdings.clone();
        sorted.sort_by_key(|holding| holding.granted);
        for (index, later) in sorted.iter().enumerate() {
            for earlier in &sorted[..index] {
                assert_ne!(earlier.token, later.token, "{earlier:?} {later:?}");
                let one_after_the_other = earlier.granted < later.asked;
                assert!(!one_after_the_other || earlier.token < later.token, "{earlier:?} then {later:?}");
            }
        }
    }

    /// How often two leases were valid at once.
    pub(crate) fn overlaps(&self) -> usize {
        let mut sorted = self.holdings.clone();
        sorted.sort_by_key(|holding| holding.granted);
        sorted.windows(2).filter(|pair| pair[0].until > pair[1].granted).count()
    }

    /// No two leases were valid at once.
    pub(crate) fn excludes(self) -> Self {
        assert_eq!(self.overlaps(), 0, "{:#?}", self.holdings);
        self
    }
}

async fn work(client: Tenure, gate: Arc<Gate<Ledger>>, record: Arc<Record>) {
    let lock = client.lock(NAME).ttl(TTL);
    let now = || client.clock().now();
    for _ in 0..TURNS_MAX {
        if record.over.load(Ordering::SeqCst) {
            return;
        }
        let asked = now();
        let guard = match lock.acquire_within(LIMIT).await {
            Ok(guard) => guard,
            Err(error) => {
                let honest = matches!(error.kind(), ErrorKind::Quorum | ErrorKind::Unavailable | ErrorKind::Timeout);
                assert!(honest, "{error}");
                record.failures.lock().unwrap().push(error.to_string());
                continue;
            }
        };
        let granted = now();
        let token = guard.token().expect("a token");
        for _ in 0..OPERATIONS {
            let Ok(seen) = gate.read(&guard, |ledger| ledger.counter) else { break };
            tokio::time::sleep(Duration::from_micros(200)).await;
            let change = gate.write(&guard, |ledger| {
                ledger.counter = seen + 1;
                ledger.changes.push(token);
            });
            let count = if change.is_ok() { &record.accepted } else { &record.refused };
            count.fetch_add(1, Ordering::SeqCst);
        }
        let until = now().min(guard.deadline());
        record.holdings.lock().unwrap().push(Holding { asked, granted, until, token });
        record.begun.fetch_add(1, Ordering::SeqCst);
        if let Err(error) = guard.release().await {
            record.failures.lock().unwrap().push(error.to_string());
        }
    }
}
