//! In-process memory: for tests, for tasks of one process, and as the measure of the engine's own cost.
//!
//! `memory:` is a store of its own; `memory:NAME` is shared by all clients of the process that name it.
//!
//! | fault | exclusion |
//! |---|---|
//! | client crash | the store dies with the process, claims end |
//! | client pause | kept: the store pauses too |
//! | clock step | kept: only the boot-time clock counts |
//!
//! Tokens grow as long as the wall clock of a new process is not behind the last token of the old one.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::ready;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;

use crate::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Event, Guarantees, Listener, Memo,
    MemoWrite, MemoWritten, MemosSurvive, ReleaseRequest, Released, RenewRequest, Renewed, Survival, WaitedFor,
    WaiterBreak,
};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::Loss;
use crate::machine::{self, Applied, MemoRecord, NameView, Op, Outcome, Queue, apply};
use crate::name::Name;
use crate::outcome;
use crate::owner::ClaimId;
use crate::token::Token;

const SHARDS: usize = 16;
/// How many operations on a shard pass before its dead names are looked for: at least so many, and so many for
/// each name in it, so that looking costs each operation next to nothing.
const SWEEP_EVERY: usize = 4096;
const SWEEP_SHARE: usize = 16;

/// Queues in memory, shared by any number of clients.
pub struct MemoryStore {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// The highest token or append number of any name that was forgotten.
    forgotten: AtomicU64,
    inboxes: Mutex<HashMap<Arc<str>, Listener, RandomState>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Boxed: a hundred thousand names are looked up by hash in a table that then fits the cache.
    queues: HashMap<Name, Box<Queue>, RandomState>,
    memos: HashMap<Name, MemoRecord, RandomState>,
    ops: usize,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// A new, empty store on the machine's clock.
    pub fn new() -> Arc<Self> {
        Self::on(Arc::new(SystemClock))
    }

    /// A new, empty store on the given clock.
    pub fn on(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            hasher: RandomState::default(),
            forgotten: AtomicU64::new(0),
            inboxes: Mutex::default(),
            clock,
        })
    }

    /// The store of this name within the process; it lives as long as a client of it does.
    pub fn named(name: &str) -> Arc<Self> {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<MemoryStore>>>> = OnceLock::new();
        let mut stores = unpoisoned(STORES.get_or_init(Mutex::default).lock());
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = Self::new();
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    /// A client of this store.
    pub fn client(self: &Arc<Self>) -> MemoryBackend {
        MemoryBackend { store: self.clone(), inbox: format!("{:016x}", rand::random::<u64>()).into() }
    }

    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(self.hasher.hash_one(name) >> 32).unwrap_or(0) % SHARDS;
        unpoisoned(self.shards[index].lock())
    }

    fn apply(&self, name: &Name, op: Op, now: Moment) -> Applied {
        let floor = self.clock.wall_micros();
        let mut shard = self.shard(name);
        let applied = self.apply_in(&mut shard, name, op, now, floor);
        drop(shard);
        applied
    }

    fn apply_in(&self, shard: &mut Shard, name: &Name, op: Op, now: Moment, floor: u64) -> Applied {
        shard.ops += 1;
        if shard.ops >= SWEEP_EVERY && shard.ops / SWEEP_SHARE >= shard.queues.len() + shard.memos.len() {
            shard.ops = 0;
            shard.queues.retain(|_, queue| queue.dead_at() > now || self.forget(queue));
            self.sweep_memos(shard, floor);
        }
        if let Some(queue) = shard.queues.get_mut(name) {
            let applied = apply(queue, op, now, floor);
            if queue.is_idle() && !self.forget(queue) {
                shard.queues.remove(name);
            }
            return applied;
        }
        let mut queue = Queue::new(self.forgotten.load(Ordering::Acquire));
        let applied = apply(&mut queue, op, now, floor);
        if !queue.is_idle() {
            shard.queues.insert(name.clone(), Box::new(queue));
        }
        applied
    }

    /// Takes note of what a forgotten name was given. Always false: the name is not kept.
    fn forget(&self, queue: &Queue) -> bool {
        self.forgotten.fetch_max(queue.high_water(), Ordering::AcqRel);
        false
    }

    /// Forgets memos that have ended. No later one has the version of one that is forgotten.
    fn sweep_memos(&self, shard: &mut Shard, wall: u64) {
        shard.memos.retain(|_, memo| {
            let is_over = memo.is_over(wall);
            if is_over {
                self.forgotten.fetch_max(memo.version, Ordering::AcqRel);
            }
            !is_over
        });
    }

    fn write_memo(&self, name: &Name, write: &MemoWrite) -> MemoWritten {
        let (now, wall) = (self.clock.now(), self.clock.wall_micros());
        let mut guard = self.shard(name);
        let shard = &mut *guard;
        shard.ops += 1;
        let mut memo = shard.memos.remove(name);
        let floor = self.forgotten.load(Ordering::Acquire).saturating_add(1);
        let queue = shard.queues.get(name).map(|queue| &**queue);
        let written = machine::write_memo(queue, &mut memo, write, now, (wall, floor));
        if let Some(memo) = memo {
            shard.memos.insert(name.clone(), memo);
        }
        drop(guard);
        written
    }

    /// Tells others what an operation did to them. No lock is held meanwhile: listeners have their own.
    fn tell(&self, applied: &Applied) {
        for granted in &applied.grants {
            let event = Event::Granted { id: granted.id, grant: granted.grant, number: granted.number };
            self.send(&granted.inbox, event);
        }
    }

    fn send(&self, inbox: &Arc<str>, event: Event) {
        let listener = unpoisoned(self.inboxes.lock()).get(inbox).cloned();
        if let Some(listener) = listener {
            listener(event);
        }
    }
}

/// A lock whose holder panicked still guards consistent data here: nothing is left half done.
fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// One client of a [`MemoryStore`].
#[derive(Debug)]
pub struct MemoryBackend {
    store: Arc<MemoryStore>,
    inbox: Arc<str>,
}

impl Drop for MemoryBackend {
    fn drop(&mut self) {
        unpoisoned(self.store.inboxes.lock()).remove(&self.inbox);
    }
}

impl Backend for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            store: "memory",
            time: "the process's boot-time clock",
            client_crash: Survival::ClaimsEnd,
            client_pause: Survival::Kept,
            store_crash: Survival::ClaimsEnd,
            failover: Survival::Never,
            partition: Survival::Never,
            clock_step: Survival::Kept,
            tokens: "within the process always; across processes while the wall clock does not step back",
            memos: Some(MemosSurvive::new(false, false, true)),
        }
    }

    fn url(&self) -> &str {
        "memory:"
    }

    fn listen(&self, listener: Listener) {
        unpoisoned(self.store.inboxes.lock()).insert(self.inbox.clone(), listener);
    }

    fn claim(&self, name: &Name, mut request: ClaimRequest) -> Call<Answer<Claimed>> {
        let counted_from = self.store.clock.now();
        request.inbox = self.inbox.clone();
        let applied = self.store.apply(name, Op::Claim(request), counted_from);
        self.store.tell(&applied);
        Box::pin(ready(Ok(Answer { value: outcome::claimed(applied.outcome), counted_from })))
    }

    fn renew(&self, batch: Vec<RenewRequest>, _fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        let counted_from = self.store.clock.now();
        let floor = self.store.clock.wall_micros();
        let mut value = Vec::with_capacity(batch.len());
        for RenewRequest { name, id, ttl, number, .. } in batch {
            let mut shard = self.store.shard(&name);
            let op = Op::Renew { id, ttl, number };
            let applied = self.store.apply_in(&mut shard, &name, op, counted_from, floor);
            drop(shard);
            self.store.tell(&applied);
            value.push(outcome::renewed(applied.outcome));
        }
        Box::pin(ready(Ok(Answer { value, counted_from })))
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let applied = self.store.apply(name, request.into(), self.store.clock.now());
        self.store.tell(&applied);
        Box::pin(ready(Ok(outcome::released(applied.outcome))))
    }

    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, mut next: ClaimRequest) -> Call<Answer<Block>> {
        let counted_from = self.store.clock.now();
        next.inbox = self.inbox.clone();
        let applied = self.store.apply(name, Op::NextBlock { id, block_end, next }, counted_from);
        self.store.tell(&applied);
        Box::pin(ready(Ok(Answer { value: outcome::block(applied.outcome), counted_from })))
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        let (by, reason) = (request.by.clone(), request.reason.clone());
        let applied = self.store.apply(name, request.into(), self.store.clock.now());
        if let Outcome::Evicted(evicted) = &applied.outcome {
            for ended in evicted {
                let loss = Loss::Broken { by: by.to_string(), reason: reason.to_string() };
                self.store.send(&ended.inbox, Event::Ended { id: ended.id, number: ended.number, loss });
            }
        }
        self.store.tell(&applied);
        Box::pin(ready(Ok(outcome::evicted(&applied.outcome))))
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        let loss = Loss::Broken { by: request.by.to_string(), reason: request.reason.to_string() };
        let applied = self.store.apply(name, request.into(), self.store.clock.now());
        if let Outcome::WaiterEnded { id, inbox, number } = &applied.outcome {
            self.store.send(inbox, Event::Ended { id: *id, number: *number, loss });
        }
        self.store.tell(&applied);
        Box::pin(ready(Ok(outcome::waiter_ended(&applied.outcome))))
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        Box::pin(ready(Ok(self.store.write_memo(name, &write))))
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let wall = self.store.clock.wall_micros();
        let memo = self.store.shard(name).memos.get(name).and_then(|memo| memo.seen(wall));
        Box::pin(ready(Ok(memo)))
    }

    fn time(&self) -> Call<SystemTime> {
        Box::pin(ready(Ok(UNIX_EPOCH + Duration::from_micros(self.store.clock.wall_micros()))))
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let now = self.store.clock.now();
        let shard = self.store.shard(name);
        let view = match shard.queues.get(name) {
            Some(queue) => NameView::of(name.clone(), queue, now),
            None => NameView::free(name.clone()),
        };
        drop(shard);
        Box::pin(ready(Ok(view)))
    }

    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        let page = self.store.page(after.as_ref(), limit, |_, queue| queue.waiters().next().is_some());
        Box::pin(ready(Ok(WaitedFor::among(page))))
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let page = self.store.page(after.as_ref(), limit, |name, _| name.as_str().starts_with(prefix));
        Box::pin(ready(Ok(page)))
    }
}

impl MemoryStore {
    /// The next names in use that are meant.
    fn page(&self, after: Option<&Name>, limit: usize, meant: impl Fn(&Name, &Queue) -> bool) -> Vec<NameView> {
        let now = self.clock.now();
        // Keeps the `limit` smallest names seen so far, so that a page costs no more memory than itself.
        let mut names: BTreeSet<Name> = BTreeSet::new();
        for shard in &self.shards {
            let shard = unpoisoned(shard.lock());
            for (name, queue) in &shard.queues {
                let lives = || queue.claims.iter().any(|claim| claim.expires > now);
                if meant(name, queue) && after.is_none_or(|after| name > after) && lives() {
                    names.insert(name.clone());
                    if names.len() > limit {
                        names.pop_last();
                    }
                }
            }
        }
        let views = names.into_iter().filter_map(|name| {
            let shard = self.shard(&name);
            let view = NameView::of(name.clone(), shard.queues.get(&name)?, now);
            (!view.is_free()).then_some(view)
        });
        views.collect()
    }
}
