//! The client: where a program begins.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::core::{Core, Defaults};
use super::guard::Lease;
use super::lock::Lock;
use super::plan::check_ttl;
use super::session::Session;
use crate::backend::{
    Answer, Backend, BreakRequest, Call, Capabilities, Guarantees, ReleaseRequest, Released, RenewRequest, Renewed,
    WaitedFor, WaiterBreak,
};
use crate::clock::{Clock, Moment, SystemClock};
use crate::doctor::Checkup;
use crate::error::{Error, ErrorKind, Loss, Result, Step};
use crate::lease;
use crate::machine::{NameView, Shape};
use crate::name::Name;
use crate::observe::{Groups, Operation, Recent};
use crate::owner::{ClaimId, Owner};
use crate::recipes::{LocalCache, MultiLock, RwLock, Striped};

/// How many names one page of a listing asks for.
const PAGE: usize = 256;
/// How long a call that is made once may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long `close` then waits for the store to forget what was kept for the next claim.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// How long `close` waits for what is pending.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// A client of one store. Cheap to clone; all clones share one connection and one watchdog.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// use tenure::Tenure;
///
/// let tenure = Tenure::connect("memory:").await?;
/// let guard = tenure.lock("orders/42").acquire().await?;
/// println!("working with token {:?}", guard.token());
/// guard.release().await?;
/// tenure.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tenure {
    pub(super) core: Arc<Core>,
}

/// Sets up a [`Tenure`]. Made by [`Tenure::builder`].
#[derive(Clone)]
#[must_use = "nothing is connected before `connect` is awaited"]
pub struct TenureBuilder {
    url: String,
    label: Option<Arc<str>>,
    defaults: Defaults,
}

impl std::fmt::Debug for TenureBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = crate::redact::redacted(&self.url);
        f.debug_struct("TenureBuilder")
            .field("url", &url)
            .field("label", &self.label)
            .field("defaults", &self.defaults)
            .finish()
    }
}

impl TenureBuilder {
    /// What people see of this client where they look for who holds a lock. `host:pid` by default.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(super::clean_label(label.as_ref()));
        self
    }

    /// The ttl of every lock that does not choose its own ([`Lock::ttl`]). 10 s by default, or what comes closest to
    /// that in the store.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = Some(ttl);
        self
    }

    /// What every name of this client begins with in the store: `prefix("shop/")` and `lock("orders/42")` lock
    /// `shop/orders/42`. Names of guards, views and errors are those in the store.
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.defaults.prefix = prefix.as_ref().into();
        self
    }

    /// Tells names apart in metrics by their first segment (`orders` of `orders/42`): only these, and `other` for all
    /// else; at most 64. Off by default: every group is more time series.
    pub fn metric_groups<G: AsRef<str>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.defaults.groups = Groups::named(groups);
        self
    }

    /// The same for the first 64 segments that are met, and `other` for all else.
    pub fn metric_groups_as_met(mut self) -> Self {
        self.defaults.groups = Groups::First;
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// As [`Tenure::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    pub async fn connect(self) -> Result<Tenure> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let backend = crate::connect::open(&self.url, clock.clone()).await?;
        Ok(Tenure { core: Core::start(backend, clock, self.label.unwrap_or_else(default_label), self.defaults) })
    }
}

fn default_label() -> Arc<str> {
    let host = gethostname::gethostname();
    super::clean_label(&format!("{}:{}", host.to_string_lossy(), std::process::id()))
}

impl Tenure {
    /// Connects to the store a URL names:
    ///
    /// | URL | store |
    /// |---|---|
    /// | `sqlite:`, `sqlite:PATH` | the embedded one: a file, for all processes of a machine |
    /// | `redis://HOST`, `rediss://…`, `redis+sentinel://H1,H2/SERVICE`, `redis+cluster://H1,H2` | Redis |
    /// | `redlock://H1,H2,H3` | independent Redis servers, by majority |
    /// | `etcd://H1,H2,H3` | etcd |
    /// | `zookeeper://H1,H2,H3/CHROOT` | ZooKeeper |
    /// | `postgres://USER@HOST/DATABASE` | PostgreSQL |
    /// | `http://HOST:7420`, `https://:SECRET@HOST` | a lock service (`tenure serve`) over any of them |
    /// | `memory:`, `memory:NAME` | this process alone |
    ///
    /// `docs/backends` has a page for each, with the options of its URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that is none,
    /// [`ErrorKind::NotBuilt`](crate::ErrorKind::NotBuilt) for a store this build lacks,
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) and
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if it cannot be opened.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    ///
    /// The client lives on the runtime it is connected on: keep that running for as long as a guard is out. When it
    /// ends, leases are lost, and whatever is asked for is refused ([`ErrorKind::Closed`](crate::ErrorKind::Closed)).
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time and I/O enabled.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Sets up a client before it connects.
    pub fn builder(url: impl AsRef<str>) -> TenureBuilder {
        TenureBuilder { url: url.as_ref().to_owned(), label: None, defaults: Defaults::default() }
    }

    /// A client of a backend of your own, on a clock of your own.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime with time and I/O enabled.
    pub fn over(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, label: impl AsRef<str>) -> Self {
        Self { core: Core::start(backend, clock, super::clean_label(label.as_ref()), Defaults::default()) }
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.core.backend.capabilities()
    }

    /// A mutex: one holder at a time.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(&self.core, name.as_ref(), Shape::Exclusive, None)
    }

    /// A read-write lock: many readers, or one writer. Its writer is the same as [`lock`](Self::lock).
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        let claim = |shape| Lock::new(&self.core, name.as_ref(), shape, None);
        RwLock::new(claim(Shape::Shared), claim(Shape::Exclusive))
    }

    /// A semaphore: holders of up to `permits` together. Takes one unless [`Lock::units`] says otherwise.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        Lock::new(&self.core, name.as_ref(), Shape::Permits { units: 1, of: permits }, None)
    }

    /// Several mutexes, held together or not at all, without deadlock among those who do the same.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(names, |name| self.lock(name))
    }

    /// A fixed number of mutexes (at least one), `NAME/0` and so on, for any number of keys.
    pub fn striped(&self, name: impl AsRef<str>, stripes: u32) -> Striped {
        let stripe = |number| self.lock(format!("{}/{number}", name.as_ref()));
        Striped::new((0..stripes.max(1)).map(stripe).collect())
    }

    /// A session: one new owner for several claims, so that locks re-enter.
    pub fn session(&self) -> Session {
        self.session_as(Owner::random())
    }

    /// A session with an owner known from elsewhere, another process say.
    pub fn session_as(&self, owner: Owner) -> Session {
        Session::new(self.core.clone(), owner)
    }

    /// Who holds a name and who waits for it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name; store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<NameView> {
        let name = self.core.name(name.as_ref())?;
        self.answer(Step::Inspect, self.core.backend.inspect(&name)).await
    }

    /// All names in use that begin with `prefix`, in order.
    ///
    /// # Errors
    ///
    /// Store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<NameView>> {
        let mut names: Vec<NameView> = Vec::new();
        loop {
            let after = names.last().map(|view| view.name.clone());
            let page = self.list_page(prefix.as_ref(), after, PAGE).await?;
            // A page may be short because names were released meanwhile; an empty one is the end.
            if page.is_empty() {
                return Ok(names);
            }
            names.extend(page);
        }
    }

    /// One page of [`list`](Self::list): at most `limit` names after `after`. An empty page is the end; a short one
    /// need not be.
    ///
    /// # Errors
    ///
    /// Store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn list_page(&self, prefix: &str, after: Option<Name>, limit: usize) -> Result<Vec<NameView>> {
        let prefix = format!("{}{prefix}", self.core.defaults.prefix);
        self.answer(Step::Inspect, self.core.backend.scan(&prefix, after, limit)).await
    }

    /// Names of the whole store that somebody waits for, a page of them.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(crate) async fn waited_for(&self, after: Option<Name>) -> Result<WaitedFor> {
        self.answer(Step::Inspect, self.core.backend.waited_for(after, PAGE)).await
    }

    /// Ends a claim that waits, with a note of why.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat it.
    pub(crate) async fn break_waiter(&self, name: &Name, claim: (ClaimId, u64), reason: &str) -> Result<bool> {
        let (by, reason) = (self.core.label.clone(), super::clean_note(reason));
        let request = WaiterBreak { id: claim.0, number: claim.1, by, reason };
        self.answer(Step::Break, self.core.backend.break_waiter(name, request)).await
    }

    /// [`inspect`](Self::inspect) of a name as the store has it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(crate) async fn inspect_exact(&self, name: &Name) -> Result<NameView> {
        self.answer(Step::Inspect, self.core.backend.inspect(name)).await
    }

    /// A name as the store has it.
    pub(crate) fn full_name(&self, name: &str) -> Result<Name> {
        self.core.name(name)
    }

    /// What was cached here, and who asks for more.
    pub(crate) fn local_cache(&self) -> &LocalCache {
        &self.core.cached
    }

    /// Waits until a moment of the client's clock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(crate) async fn pause_until(&self, at: Moment) {
        if self.core.clock.now() < at {
            self.core.alarm(at).await;
        }
    }

    /// Ends all holders' claims of a name, or one owner's; answers how many. The evicted are told who and
    /// why; the next holder may run before they have heard, but has a higher token.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name; store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: look with [`inspect`](Self::inspect).
    pub async fn break_holders(&self, name: impl AsRef<str>, owner: Option<Owner>, reason: &str) -> Result<usize> {
        let name = self.core.name(name.as_ref())?;
        let reason = super::clean_label(reason);
        let request = BreakRequest { owner, up_to: None, by: self.core.label.clone(), reason };
        self.answer(Step::Break, self.core.backend.break_holders(&name, request)).await
    }

    /// Renews the claim that [`Guard::leave`](crate::Guard::leave) left to `owner`. A shorter ttl than it has
    /// keeps the longer one; `None` keeps it too. Its `token` is absent while it waits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the store does not have it; store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that arrives late only lengthens a live claim.
    pub async fn renew_as(&self, name: impl AsRef<str>, owner: &Owner, ttl: Option<Duration>) -> Result<Lease> {
        let name = self.core.name(name.as_ref())?;
        let id = ClaimId::of(owner, &name);
        if let Some(ttl) = ttl {
            let store = self.core.backend.capabilities();
            // A shorter one keeps the longer that the claim has.
            check_ttl(ttl.max(store.ttl_min), &store).map_err(|error| error.at(Step::Renew).about(&name))?;
        }
        let (ttl, number) = (ttl.unwrap_or_default(), None);
        let request = RenewRequest { name: name.clone(), id, owner: owner.clone(), ttl, number };
        let call = self.core.backend.renew(vec![request], false);
        let Answer { mut value, counted_from } = self.answer(Step::Renew, call).await?;
        match value.pop() {
            Some(Renewed::Stands(standing)) => Ok(Lease {
                name,
                owner: owner.clone(),
                token: standing.state.ok().map(|grant| grant.token),
                expires_in: lease::deadline(counted_from, standing.ttl).since(self.core.clock.now()),
            }),
            Some(Renewed::Broken { by, reason }) => {
                let loss = Loss::Broken { by: by.to_string(), reason: reason.to_string() };
                Err(Error::lost(&name, loss).at(Step::Renew))
            }
            Some(Renewed::Unknown(why)) => {
                let message = format!("the renewal was not answered: {why}");
                Err(Error::new(ErrorKind::Unavailable, message)
                    .about(&name)
                    .at(Step::Renew)
                    .in_store(self.core.backend.url()))
            }
            Some(Renewed::Gone) | None => Err(Error::lost(&name, Loss::Gone).at(Step::Renew)),
        }
    }

    /// Releases the claim that [`Guard::leave`](crate::Guard::leave) left to `owner`; false if there is none. A guard
    /// that this client still has of it is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name; store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: call it again.
    pub async fn release_as(&self, name: impl AsRef<str>, owner: &Owner) -> Result<bool> {
        let name = self.core.name(name.as_ref())?;
        let id = ClaimId::of(owner, &name);
        // The id may be in use again by the time a delayed release arrives, so it names the claim's number.
        let view = self.answer(Step::Release, self.core.backend.inspect(&name)).await?;
        let holding = view.holders.iter().flat_map(|holder| &holder.claims);
        let mut claims = holding.chain(view.waiters.iter().map(|waiter| &waiter.claim));
        let (_, shown) = self.core.backend.shown(owner, &name, id);
        let Some((_, number)) = claims.find(|(claim, _)| *claim == shown) else { return Ok(false) };
        // A guard of this client's is told before anybody else can be granted the name.
        let own = self.core.registry.find(id).filter(|claim| claim.number() == Some(*number) && claim.is_granted());
        if let Some(claim) = own {
            self.core.lose(&claim, Loss::Gone);
        }
        let request = ReleaseRequest { number: Some(*number), ..ReleaseRequest::new(owner.clone(), id) };
        let released = self.answer(Step::Release, self.core.backend.release(&name, request)).await?;
        Ok(matches!(released, Released::Yes))
    }

    /// An owner as views of a name show it: the same, but through a service, which shows nobody's owner to others.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let session = tenure.session();
    /// let guard = session.lock("orders/42").acquire().await?;
    /// let holder = tenure.inspect("orders/42").await?.holders[0].owner.clone();
    /// assert_eq!(holder, Some(tenure.shown_owner(guard.name(), session.owner())));
    /// # Ok(()) }
    /// ```
    pub fn shown_owner(&self, name: &Name, owner: &Owner) -> Owner {
        self.core.backend.shown(owner, name, ClaimId::of(owner, name)).0
    }

    /// Looks at the store for what makes locks unsafe or slow there, and says what to change.
    ///
    /// # Errors
    ///
    /// Store errors; what the store does not let us look at is a finding, not an error.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn doctor(&self) -> Result<Checkup> {
        let mut checkup = Checkup::of(&self.guarantees());
        checkup.add(self.answer(Step::Inspect, self.core.backend.examine()).await?);
        Ok(checkup)
    }

    /// What this store's locks and tokens survive.
    pub fn guarantees(&self) -> Guarantees {
        self.core.backend.guarantees()
    }

    /// The store's URL, without a password.
    pub fn url(&self) -> &str {
        self.core.backend.url()
    }

    /// The clock leases are measured on.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.core.clock.clone()
    }

    /// The flight recorder: the last 1,024 claims of this client that ended, and acquires that were not granted, the
    /// latest first. It says after the fact how long each was waited for, and behind whom. Takes 184 KiB a client.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// tenure.lock("orders/42").acquire().await?.release().await?;
    /// println!("{}", tenure.recent()[0]); // orders/42: waited 12µs, held 40µs with token 1, released
    /// # Ok(()) }
    /// ```
    pub fn recent(&self) -> Vec<Recent> {
        self.core.observer.recent(self.core.clock.now())
    }

    /// Tells the recorder of `metrics` all that happened until now. The client does so by itself within a second, in
    /// [`close`](Self::close), and when it is dropped: this is for whoever reads the recorder right after an event.
    pub fn flush_metrics(&self) {
        self.core.observer.metrics.tell();
    }

    /// How many claims this client keeps alive now, waiting or holding.
    pub fn live_claims(&self) -> usize {
        self.core.registry.claims()
    }

    /// Refuses new claims and waits until everything pending in the background (releases of dropped guards
    /// and of given-up attempts) has ended, for at most ten seconds. Guards that are still out stay valid.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the store did not confirm it all in that
    /// time; what is left goes on in the background while the runtime lives, and ends with its ttl.
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) if that runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the work goes on in the background.
    pub async fn close(&self) -> Result<()> {
        self.core.closed.store(true, Ordering::Release);
        let closed = self.end_all().await;
        self.flush_metrics();
        closed
    }

    async fn end_all(&self) -> Result<()> {
        let limit = || Some(self.core.clock.now() + CLOSE_MAX);
        let idle = std::pin::pin!(self.core.idle());
        self.core.within(limit, idle).await.ok_or_else(|| {
            if let Err(over) = self.core.refuse_if_over() {
                return over.at(Step::Release);
            }
            let message = format!("{} claims could not be ended yet", self.core.errands());
            self.told(Error::new(ErrorKind::Unavailable, message), Step::Release)
        })?;
        // What it keeps for the next claim is of no use any more. Should that not be heard, it ends by itself.
        let limit = || Some(self.core.clock.now() + FAREWELL_MAX);
        let _ = self.core.within(limit, self.core.backend.close()).await;
        Ok(())
    }

    /// Awaits a call that is made once, for at most [`ANSWER_MAX`].
    pub(super) async fn answer<T>(&self, step: Step, call: Call<T>) -> Result<T> {
        self.core.refuse_if_over().map_err(|error| error.at(step))?;
        let sent = self.core.clock.now();
        let limit = || Some(sent + ANSWER_MAX);
        let operation = match step {
            Step::Renew => Operation::Renew,
            Step::Release => Operation::Release,
            Step::Break => Operation::Break,
            Step::Memo => Operation::Memo,
            _ => Operation::Inspect,
        };
        let trip = self.core.observer.metrics.sent(operation, sent);
        let answer = self.core.within(limit, call).await.unwrap_or_else(|| Err(self.core.no_answer()));
        if answer.is_ok() {
            self.core.observer.metrics.answered(trip, &*self.core.clock);
        }
        answer.map_err(|error| self.told(error, step))
    }

    fn told(&self, error: Error, step: Step) -> Error {
        error.at(step).in_store(self.core.backend.url())
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure").field("store", &self.url()).field("claims", &self.live_claims()).finish()
    }
}
