//! What a conformance case is given: clients of one store, names nobody else uses, and time.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::backend::{Backend, Capabilities, ClaimRequest, Shape};
use tenure::{ClaimId, Name, Owner, Result};
use tokio::sync::Semaphore;

use crate::client::{Client, TRIES_MAX};
use crate::unreliable::{Faults, Unreliable};
use tenure::testing::ManualClock;

/// A claim that a case lets die: three quarters of it are long enough for a few calls on a busy machine, and the whole
/// short enough to wait for.
const TTL_SHORT_REAL: Duration = Duration::from_millis(2000);
/// A claim that no case lets die. On a clock that stands still the difference costs nothing.
const TTL_LONG: Duration = Duration::from_secs(30);

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;
type Connect = Box<dyn Fn() -> Connecting + Send + Sync>;

/// A store under test, and how its clients are made.
pub struct Store {
    connect: Connect,
    clock: Option<ManualClock>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Store {
    /// A store whose time is the given clock's.
    pub fn on<C, F, B>(clock: &ManualClock, connect: C) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<B>> + Send + 'static,
        B: Backend,
    {
        Self { clock: Some(clock.clone()), ..Self::in_real_time(connect) }
    }

    /// A store with a clock of its own: cases wait for it in real time.
    pub fn in_real_time<C, F, B>(connect: C) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<B>> + Send + 'static,
        B: Backend,
    {
        let connect: Connect = Box::new(move || {
            let connecting = connect();
            Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Backend>) })
        });
        Self { connect, clock: None, kept: Vec::new() }
    }

    /// Keeps something alive as long as the store is used: a directory, a server.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(kept));
        self
    }
}

/// One case's view of a [`Store`].
pub struct Fixture {
    store: Store,
    seed: Option<u64>,
    clients: AtomicU64,
}

impl Fixture {
    /// The store as it is.
    pub fn new(store: Store) -> Self {
        Self { store, seed: None, clients: AtomicU64::new(0) }
    }

    /// The store behind [`Unreliable`], with faults drawn from the seed.
    pub fn unreliable(store: Store, seed: u64) -> Self {
        Self { seed: Some(seed), ..Self::new(store) }
    }

    /// Whether replies and events may be lost.
    pub fn is_unreliable(&self) -> bool {
        self.seed.is_some()
    }

    /// A new client of the store.
    pub async fn client(&self) -> Client {
        let backend = self.connected().await;
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let Some(seed) = self.seed else { return Client::new(backend, None) };
        // Each client draws for itself, so that the order in which they run changes no draw.
        let wrapped = Unreliable::new(backend, Faults::default(), seed.wrapping_add(number.wrapping_mul(0x9e37_79b9)));
        let silence = wrapped.silence();
        Client::new(Arc::new(wrapped), Some(silence))
    }

    /// A connection. On a busy machine the answer may come too late; then the store is asked again, as it is by every
    /// call of a [`Client`]. Few connect at a time: all at once would keep each other from being in time.
    async fn connected(&self) -> Arc<dyn Backend> {
        static AT_A_TIME: Semaphore = Semaphore::const_new(4);
        let mut tries = 0;
        loop {
            let place = AT_A_TIME.acquire().await.expect("never closed");
            match (self.store.connect)().await {
                Ok(backend) => return backend,
                Err(error) if error.is_retryable() && tries < TRIES_MAX => tries += 1,
                Err(error) => panic!("cannot connect to the store under test: {error:?}"),
            }
            drop(place);
        }
    }

    /// A name nobody else uses.
    #[allow(clippy::unused_self)] // a case reads `fixture.name(..)` beside `fixture.client()`
    pub fn name(&self, hint: &str) -> Name {
        Name::new(format!("test/{:016x}/{hint}", rand::random::<u64>())).expect("a valid name")
    }

    /// A wish of a new owner to hold a name exclusively, waiting for it, for longer than any case lasts.
    pub fn request(&self) -> ClaimRequest {
        plain_request()
    }

    /// A wish for this shape; otherwise like [`request`](Self::request).
    pub fn request_of(&self, shape: Shape) -> ClaimRequest {
        ClaimRequest { shape, ..self.request() }
    }

    /// A ttl that a case can wait for.
    pub fn ttl_short(&self, capabilities: &Capabilities) -> Duration {
        let ttl = if self.store.clock.is_some() { Duration::from_secs(10) } else { TTL_SHORT_REAL };
        ttl.max(capabilities.ttl_min)
    }

    /// Lets this much of the store's time pass.
    pub async fn pass(&self, time: Duration) {
        match &self.store.clock {
            Some(clock) => clock.advance(time),
            None => tokio::time::sleep(time).await,
        }
    }

    /// Steps the store's wall clock, where the test has it in hand; answers whether it has.
    pub fn step_wall(&self, by_micros: i64) -> bool {
        self.store.clock.as_ref().inspect(|clock| clock.step_wall(by_micros)).is_some()
    }

    /// Whether the store lacks what a case needs; says so, since a case must not be skipped in silence.
    pub fn lacks(&self, client: &Client, what: &str, has: impl Fn(&Capabilities) -> bool) -> bool {
        let lacks = !has(&client.capabilities());
        if lacks {
            println!("not applicable: {} has no {what}", client.url());
        }
        lacks
    }
}

/// An exclusive claim that waits, of an owner of its own: what most requests change one or two things of.
pub fn plain_request() -> ClaimRequest {
    let owner = Owner::random();
    ClaimRequest {
        id: ClaimId::random(),
        label: format!("label of {owner}").into(),
        owner,
        shape: Shape::Exclusive,
        ttl: TTL_LONG,
        queue: true,
        block: 1,
        strict: false,
        inbox: "".into(),
        within: Vec::new(),
        reenter: None,
        solo: false,
        attempt: 0,
        presumed: Duration::ZERO,
    }
}
