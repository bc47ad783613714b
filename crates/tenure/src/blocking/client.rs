//! The client.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::background::{Background, run_once};
use super::lock::Lock;
use super::multi::MultiLock;
use super::rwlock::RwLock;
use super::session::Session;
use super::striped::Striped;
use super::watch::Watch;
use crate::backend::{Backend, Capabilities, Guarantees};
use crate::clock::Clock;
use crate::deadlocks::Deadlock;
use crate::doctor::Checkup;
use crate::engine::Lease;
use crate::error::Result;
use crate::explain::Report;
use crate::machine::NameView;
use crate::memo::Memo;
use crate::name::Name;
use crate::observe::Recent;
use crate::owner::Owner;
use crate::recipes::CachedError;

/// A client of one store. Cheap to clone; all clones share one connection and one thread.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// use tenure::blocking::Tenure;
///
/// let tenure = Tenure::connect("memory:")?;
/// let guard = tenure.lock("orders/42").acquire()?;
/// println!("working with token {:?}", guard.token());
/// guard.release()?;
/// tenure.close()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Tenure {
    inner: crate::Tenure,
    background: Arc<Background>,
}

/// Sets up a [`Tenure`]. Made by [`Tenure::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is connected before `connect` is called"]
pub struct TenureBuilder(crate::TenureBuilder);

impl TenureBuilder {
    /// As [`TenureBuilder::label`](crate::TenureBuilder::label).
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self(self.0.label(label))
    }

    /// As [`TenureBuilder::ttl`](crate::TenureBuilder::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// As [`TenureBuilder::prefix`](crate::TenureBuilder::prefix).
    pub fn prefix(self, prefix: impl AsRef<str>) -> Self {
        Self(self.0.prefix(prefix))
    }

    /// As [`TenureBuilder::metric_groups`](crate::TenureBuilder::metric_groups).
    pub fn metric_groups<G: AsRef<str>>(self, groups: impl IntoIterator<Item = G>) -> Self {
        Self(self.0.metric_groups(groups))
    }

    /// As [`TenureBuilder::metric_groups_as_met`](crate::TenureBuilder::metric_groups_as_met).
    pub fn metric_groups_as_met(self) -> Self {
        Self(self.0.metric_groups_as_met())
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// As [`Tenure::connect`].
    pub fn connect(self) -> Result<Tenure> {
        Tenure::start(|| self.0.connect())
    }
}

/// As [`tenure::examine`](crate::examine).
///
/// # Errors
///
/// As [`tenure::examine`](crate::examine); [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
pub fn examine(url: impl AsRef<str>) -> Result<Checkup> {
    let url = url.as_ref();
    run_once(|| crate::examine(url))
}

impl Tenure {
    /// Connects to the store that a URL names, and starts the client's thread.
    ///
    /// # Errors
    ///
    /// As [`Tenure::connect`](crate::Tenure::connect). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder(url).connect()
    }

    /// Sets up a client before it connects.
    pub fn builder(url: impl AsRef<str>) -> TenureBuilder {
        TenureBuilder(crate::Tenure::builder(url))
    }

    /// A client of a backend of your own, on a clock of your own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if its thread cannot be started,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn over(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, label: impl AsRef<str>) -> Result<Self> {
        let label = label.as_ref().to_owned();
        Self::start(move || async move { Ok(crate::Tenure::over(backend, clock, label)) })
    }

    fn start<C>(connect: impl FnOnce() -> C + Send + 'static) -> Result<Self>
    where
        C: Future<Output = Result<crate::Tenure>>,
    {
        let (background, inner) = Background::start(connect)?;
        Ok(Self { inner, background })
    }

    fn lock_of(&self, inner: crate::Lock) -> Lock {
        Lock::new(inner, &self.background)
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    /// A mutex: one holder at a time.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.lock_of(self.inner.lock(name))
    }

    /// A read-write lock: many readers, or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.inner.rwlock(name), &self.background)
    }

    /// A semaphore: holders of up to `permits` together.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        self.lock_of(self.inner.semaphore(name, permits))
    }

    /// Several mutexes, held together or not at all.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self.inner.lock_all(names), &self.background)
    }

    /// A fixed number of mutexes for any number of keys.
    pub fn striped(&self, name: impl AsRef<str>, stripes: u32) -> Striped {
        Striped::new(self.inner.striped(name, stripes), &self.background)
    }

    /// A session: one new owner for several claims, so that locks re-enter.
    pub fn session(&self) -> Session {
        Session::new(self.inner.session(), &self.background)
    }

    /// A session with an owner known from elsewhere, another process say.
    pub fn session_as(&self, owner: Owner) -> Session {
        Session::new(self.inner.session_as(owner), &self.background)
    }

    /// Who holds a name and who waits for it.
    ///
    /// # Errors
    ///
    /// As [`Tenure::inspect`](crate::Tenure::inspect).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<NameView> {
        self.background.wait(self.inner.inspect(name))
    }

    /// All names in use that begin with `prefix`, in order.
    ///
    /// # Errors
    ///
    /// As [`Tenure::list`](crate::Tenure::list).
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<NameView>> {
        self.background.wait(self.inner.list(prefix))
    }

    /// One page of [`list`](Self::list).
    ///
    /// # Errors
    ///
    /// As [`Tenure::list_page`](crate::Tenure::list_page).
    pub fn list_page(&self, prefix: &str, after: Option<Name>, limit: usize) -> Result<Vec<NameView>> {
        self.background.wait(self.inner.list_page(prefix, after, limit))
    }

    /// What changes among the names that begin with `prefix`.
    pub fn watch(&self, prefix: impl AsRef<str>) -> Watch {
        Watch::new(self.inner.watch(prefix), &self.background)
    }

    /// The owners that wait for each other.
    ///
    /// # Errors
    ///
    /// As [`Tenure::deadlocks`](crate::Tenure::deadlocks).
    pub fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        self.background.wait(self.inner.deadlocks())
    }

    /// Ends the youngest claim that waits in this deadlock; whether it still waited.
    ///
    /// # Errors
    ///
    /// As [`Tenure::break_deadlock`](crate::Tenure::break_deadlock).
    pub fn break_deadlock(&self, deadlock: &Deadlock) -> Result<bool> {
        self.background.wait(self.inner.break_deadlock(deadlock))
    }

    /// The store's clock.
    ///
    /// # Errors
    ///
    /// As [`Tenure::time`](crate::Tenure::time).
    pub fn time(&self) -> Result<SystemTime> {
        self.background.wait(self.inner.time())
    }

    /// The memo of a name: what its last exclusive holder wrote.
    ///
    /// # Errors
    ///
    /// As [`Tenure::memo`](crate::Tenure::memo).
    pub fn memo(&self, name: impl AsRef<str>) -> Result<Option<Memo>> {
        self.background.wait(self.inner.memo(name))
    }

    /// The value of a name: the one at hand, the one in the store, or else what `compute` makes, once for a whole
    /// fleet. `compute` runs on the caller's thread.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let tenure = tenure::blocking::Tenure::connect("memory:")?;
    /// let price = tenure.cached("price/42", Duration::from_secs(60), || Ok::<_, std::io::Error>("1299"))?;
    /// assert_eq!(&*price, b"1299");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Tenure::cached`](crate::Tenure::cached).
    pub fn cached<V, E>(
        &self,
        name: impl AsRef<str>,
        keep: Duration,
        compute: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<[u8]>, CachedError<E>>
    where
        V: Into<Vec<u8>>,
        E: Send + Sync + 'static,
    {
        self.background.wait(self.inner.cached(name, keep, || async { compute() }))
    }

    /// Looks at a name, and again until every holder was seen to renew, or should have been: for five seconds at most.
    ///
    /// # Errors
    ///
    /// As [`Tenure::explain`](crate::Tenure::explain).
    pub fn explain(&self, name: impl AsRef<str>) -> Result<Report> {
        self.background.wait(self.inner.explain(name))
    }

    /// The same; `before` is told how long it may take, unless the first look is enough.
    ///
    /// # Errors
    ///
    /// As [`Tenure::explain`](crate::Tenure::explain).
    pub fn explain_after(&self, name: impl AsRef<str>, before: impl FnOnce(Duration)) -> Result<Report> {
        self.background.wait(self.inner.explain_after(name, before))
    }

    /// Ends all holders' claims of a name, or one owner's; answers how many.
    ///
    /// # Errors
    ///
    /// As [`Tenure::break_holders`](crate::Tenure::break_holders).
    pub fn break_holders(&self, name: impl AsRef<str>, owner: Option<Owner>, reason: &str) -> Result<usize> {
        self.background.wait(self.inner.break_holders(name, owner, reason))
    }

    /// Renews the claim that [`Guard::leave`](super::Guard::leave) left to `owner`.
    ///
    /// # Errors
    ///
    /// As [`Tenure::renew_as`](crate::Tenure::renew_as).
    pub fn renew_as(&self, name: impl AsRef<str>, owner: &Owner, ttl: Option<Duration>) -> Result<Lease> {
        self.background.wait(self.inner.renew_as(name, owner, ttl))
    }

    /// Releases the claim that [`Guard::leave`](super::Guard::leave) left to `owner`; false if there is none.
    ///
    /// # Errors
    ///
    /// As [`Tenure::release_as`](crate::Tenure::release_as).
    pub fn release_as(&self, name: impl AsRef<str>, owner: &Owner) -> Result<bool> {
        self.background.wait(self.inner.release_as(name, owner))
    }

    /// An owner as views of a name show it.
    pub fn shown_owner(&self, name: &Name, owner: &Owner) -> Owner {
        self.inner.shown_owner(name, owner)
    }

    /// Looks at the store for what makes locks unsafe or slow there, and says what to change.
    ///
    /// # Errors
    ///
    /// As [`Tenure::doctor`](crate::Tenure::doctor).
    pub fn doctor(&self) -> Result<Checkup> {
        self.background.wait(self.inner.doctor())
    }

    /// What this store's locks and tokens survive.
    pub fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    /// The store's URL, without a password.
    pub fn url(&self) -> &str {
        self.inner.url()
    }

    /// The clock leases are measured on.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    /// The flight recorder: the last 1,024 claims of this client that ended, the latest first.
    pub fn recent(&self) -> Vec<Recent> {
        self.inner.recent()
    }

    /// Tells the recorder of `metrics` all that happened until now.
    pub fn flush_metrics(&self) {
        self.inner.flush_metrics();
    }

    /// How many claims this client keeps alive now, waiting or holding.
    pub fn live_claims(&self) -> usize {
        self.inner.live_claims()
    }

    /// Refuses new claims and waits until everything pending in the background has ended, for at most ten seconds.
    /// Guards that are still out stay valid.
    ///
    /// # Errors
    ///
    /// As [`Tenure::close`](crate::Tenure::close).
    pub fn close(&self) -> Result<()> {
        self.background.wait(self.inner.close())
    }
}
