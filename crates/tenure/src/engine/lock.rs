//! A lock: a name and how to hold it.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use super::cohort;
use super::core::Core;
use super::guard::Guard;
use super::live::Won;
use super::pending::Pending;
use super::plan::{Plan, TTL_DEFAULT, WaitStrategy};
use super::wait::Wait;
use crate::backend::{Capabilities, Replicas};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::machine::Shape;
use crate::name::Name;
use crate::observe::{HandOver, Wish};
use crate::owner::Owner;
use crate::token::Token;

/// A name and how to hold it. Made by [`Tenure::lock`](crate::Tenure::lock) and its siblings; nothing is
/// sent before one of the `acquire` methods is awaited. Cheap to clone and to use again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
///
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let lock = tenure.lock("orders/42").ttl(Duration::from_secs(5));
/// let guard = lock.acquire().await?;
/// assert!(lock.try_acquire().await?.is_none());
/// guard.release().await?;
/// assert!(lock.try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    core: Arc<Core>,
    plan: Arc<Plan>,
    /// What was given as a name, if that is not one: told when the lock is acquired.
    bad_name: Option<Box<str>>,
    /// How many permits were asked for of something that has none.
    bad_units: Option<u32>,
}

impl Lock {
    pub(crate) fn new(core: &Arc<Core>, name: &str, shape: Shape, owner: Option<Owner>) -> Self {
        let checked = core.name(name);
        let bad_name = checked.is_err().then(|| name.into());
        let plan = Plan {
            name: checked.unwrap_or_else(|_| Name::placeholder()),
            shape,
            ttl: core.defaults.ttl.unwrap_or(TTL_DEFAULT),
            ttl_chosen: core.defaults.ttl.is_some(),
            label: core.label.clone(),
            owner,
            repeatable: false,
            renewed: true,
            strict: false,
            within: Vec::new(),
            refuse_deadlock: false,
            reenter: None,
            strategy: WaitStrategy::default(),
            max_hold: None,
            warn_after: None,
            replicas: None,
        };
        Self { core: core.clone(), plan: Arc::new(plan), bad_name, bad_units: None }
    }

    fn plan_mut(&mut self) -> &mut Plan {
        Arc::make_mut(&mut self.plan)
    }

    pub(crate) fn now(&self) -> Moment {
        self.core.clock.now()
    }

    /// Its store and its name: the order in which several locks are taken. What is no name yet goes by what it is.
    pub(crate) fn place(&self) -> (&str, &str) {
        let name = self.bad_name.as_deref().unwrap_or(self.plan.name.as_str());
        (self.core.backend.url(), name)
    }

    pub(crate) fn shape(&self) -> Shape {
        self.plan.shape
    }

    /// Whether whoever takes the other one has no need of this: the same name of the same client and owner, held at
    /// least as firmly. Permits add up.
    pub(crate) fn is_covered_by(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.core, &other.core)
            && self.place() == other.place()
            && self.plan.owner == other.plan.owner;
        let firm = |lock: &Self| match lock.plan.shape {
            Shape::Exclusive => Some(1),
            Shape::Shared => Some(0),
            Shape::Permits { .. } => None,
        };
        is_same && firm(self).zip(firm(other)).is_some_and(|(own, others)| own <= others)
    }

    /// Whether this guard holds the same name for the same session.
    pub(crate) fn is_of_session(&self, guard: &Guard) -> bool {
        self.plan.name == *guard.name() && self.plan.owner.as_ref() == Some(guard.owner())
    }

    /// How long a claim of it outlives its last renewal, in a store with these limits.
    pub(crate) fn ttl_within(&self, store: &Capabilities) -> Duration {
        self.plan.within_limits(store).ttl
    }

    /// What people see of the holder.
    pub(crate) fn shown_label(&self) -> &str {
        &self.plan.label
    }

    /// How long the lock outlives a holder that died: 100 ms to 24 h, and what the store can keep; 10 s by default,
    /// or what comes closest to that in this store. The watchdog renews every third of it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let plan = self.plan_mut();
        (plan.ttl, plan.ttl_chosen) = (ttl, true);
        self
    }

    /// Leaves the lease to run out after one ttl instead of renewing it.
    pub fn no_renewal(mut self) -> Self {
        self.plan_mut().renewed = false;
        self
    }

    /// Ends the lease after this long, whatever its holder does: [`Guard::lost`] then resolves with
    /// [`Loss::MaxHold`](crate::Loss::MaxHold). Off by default.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.plan_mut().max_hold = Some(limit);
        self
    }

    /// Logs a warning (`tracing`) when it is held for longer than this. Off by default.
    pub fn warn_after(mut self, limit: Duration) -> Self {
        self.plan_mut().warn_after = Some(limit);
        self
    }

    /// What people see of the holder, instead of the client's label.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.plan_mut().label = super::clean_label(label.as_ref());
        self
    }

    /// Keeps strictly to the order in which claims reached the store: no hand-over among local tasks, and a
    /// waiter is never passed over, not even one that cannot be told of its grant.
    pub fn strict_fifo(mut self) -> Self {
        self.plan_mut().strict = true;
        self
    }

    /// Reports a grant, and counts a renewal, only once so many replicas have it: a number, or
    /// [`Replicas::Majority`] (on `redis://` with `?replicas=N` in the URL). For stores with replicas (Redis).
    /// Too few at the grant is [`ErrorKind::Replicas`](crate::ErrorKind::Replicas) and leaves nothing behind; at a
    /// renewal the lease is lost at its deadline unless enough come back before. Off by default.
    pub fn min_replicas(mut self, replicas: impl Into<Replicas>) -> Self {
        self.plan_mut().replicas = Some(replicas.into());
        self
    }

    /// How to wait where the store keeps no queue.
    pub fn wait_strategy(mut self, strategy: WaitStrategy) -> Self {
        self.plan_mut().strategy = strategy;
        self
    }

    /// How many permits to take, for a semaphore; 1 by default. Of anything else it is refused when acquired
    /// ([`ErrorKind::Invalid`]).
    pub fn units(mut self, units: u32) -> Self {
        match self.plan.shape {
            Shape::Permits { of, .. } => self.plan_mut().shape = Shape::Permits { units, of },
            Shape::Exclusive | Shape::Shared => self.bad_units = Some(units),
        }
        self
    }

    /// The owners this process runs within: recorded with the claim, for finding deadlocks.
    pub fn within(mut self, owners: impl IntoIterator<Item = Owner>) -> Self {
        self.plan_mut().within = owners.into_iter().collect();
        self
    }

    pub(crate) fn refuse_deadlock(mut self, refuse: bool) -> Self {
        if refuse {
            self.plan_mut().refuse_deadlock = true;
        }
        self
    }

    /// Only re-enters: [`ErrorKind::NotHeld`] unless the session's owner holds the name with this token.
    pub fn reenter(mut self, token: Token) -> Self {
        self.plan_mut().reenter = Some(token);
        self
    }

    /// Derives the claim's id from owner and name, so that the same acquire again, from another process too, is a
    /// retry of this one and takes its claim over: a guard of it that is still out is lost, in this client at once
    /// ([`Loss::TakenOver`](crate::Loss::TakenOver)), elsewhere at its next renewal; an acquire of this client that
    /// still waits for it fails. For a session whose owner the caller keeps
    /// ([`Tenure::session_as`](crate::Tenure::session_as)).
    pub fn repeatable(mut self) -> Self {
        self.plan_mut().repeatable = self.plan.owner.is_some();
        self
    }

    /// Waits for the lock, for ever.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] (of a fleet: [`ErrorKind::Quorum`]) if the store has not answered within 10 s
    /// (within a minute while it answers others of this client); once it has answered, outages are ridden out.
    /// [`ErrorKind::Conflict`] if the claim can never stand beside the live ones. [`ErrorKind::Deadlock`] if it waited
    /// in a deadlock, and somebody broke that ([`Tenure::break_deadlock`](crate::Tenure::break_deadlock)).
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses the place in the queue. The claim is ended in the background, or by its ttl.
    pub async fn acquire(&self) -> Result<Guard> {
        match self.run(Wait::Forever).await? {
            Some(guard) => Ok(guard),
            None => Err(crate::engine::core::no_answer().about(&self.plan.name)),
        }
    }

    /// Waits for the lock, at most this long.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] if it was held by somebody else all the time ([`Error::holder`](crate::Error::holder)
    /// says by whom), [`ErrorKind::Unavailable`] if the store did not answer, [`ErrorKind::Conflict`] if the
    /// claim can never stand beside the live ones.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses the place in the queue. The claim is ended in the background, or by its ttl.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        let until = self.core.clock.now() + limit;
        match self.run(Wait::Until(until)).await? {
            Some(guard) => Ok(guard),
            None => Err(crate::engine::core::no_answer().about(&self.plan.name)),
        }
    }

    /// Takes the lock if it is free; `None` if it is not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the store did not answer, [`ErrorKind::Conflict`] if the claim can never
    /// stand beside the live ones.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: a claim that was granted all the same is ended in the
    /// background, or by its ttl.
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        match self.run(Wait::No).await {
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            outcome => outcome,
        }
    }

    /// Appends a claim, and only then gives `held` back, which holds the same name for another owner: whoever comes
    /// next waits behind that claim. Waits for the grant as [`acquire`](Self::acquire), apart from other local tasks.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire); `held` is given back, too.
    pub(crate) async fn acquire_after(&self, held: Guard) -> Result<Guard> {
        let (plan, _) = self.checked()?;
        let wish = Wish::new(&self.core.observer, &*self.core.clock, &plan.name, &plan.label);
        let acquiring = async {
            let mut pending = Pending::new(&self.core, plan.clone(), 1, 0);
            let placed = pending.place(&wish).await;
            drop(held);
            let driven = match placed {
                Ok(()) => pending.drive(Wait::Forever, &wish).await,
                Err(error) => Err(error),
            };
            match driven {
                Ok(Some(won)) => Ok(Some(Acquired::apart(&self.core, won))),
                other => not_granted(pending, other).await,
            }
        };
        let outcome = acquiring.instrument(wish.span()).await;
        match begin(outcome, &plan, wish, Wait::Forever)? {
            Some(guard) => Ok(guard),
            None => Err(crate::engine::core::no_answer().about(&self.plan.name)),
        }
    }

    /// The plan for this store, and what the store can do; refuses what can never work.
    fn checked(&self) -> Result<(Arc<Plan>, Capabilities)> {
        if let Some(bad) = &self.bad_name {
            self.core.name(bad)?;
        }
        if let Some(units) = self.bad_units {
            let problem = format!("units({units}): only a semaphore has permits; write semaphore(name, permits)");
            return Err(Error::new(ErrorKind::Invalid, problem).at(Step::Acquire).about(&self.plan.name));
        }
        self.core.refuse_if_closed()?;
        let capabilities = self.core.backend.capabilities();
        let plan = self.plan.within_limits(&capabilities);
        plan.check(&capabilities)?;
        Ok((plan, capabilities))
    }

    async fn run(&self, wait: Wait) -> Result<Option<Guard>> {
        let (plan, capabilities) = self.checked()?;
        let wish = Wish::new(&self.core.observer, &*self.core.clock, &plan.name, &plan.label);
        let acquiring = async {
            if capabilities.blocks && plan.may_join_cohort() {
                cohort::acquire(&self.core, &plan, wait, &wish).await
            } else {
                acquire_apart(&self.core, &plan, wait, &wish).await
            }
        };
        let outcome = acquiring.instrument(wish.span()).await;
        begin(outcome, &plan, wish, wait)
    }
}

/// Starts what is a guard's own, or tells why there is none.
fn begin(outcome: Result<Option<Acquired>>, plan: &Plan, wish: Wish<'_>, wait: Wait) -> Result<Option<Guard>> {
    match outcome {
        Ok(Some(acquired)) => Ok(Some(acquired.begin(plan, wish))),
        Ok(None) => {
            wish.failed(None);
            Ok(None)
        }
        Err(error) => {
            // Left in the queue by an attempt with the same id, and not waited for: busy.
            let busy = matches!(wait, Wait::No) && error.kind() == ErrorKind::Timeout;
            wish.failed(Some(&error).filter(|_| !busy));
            Err(error)
        }
    }
}

/// A guard, and how it was come by.
pub(crate) struct Acquired {
    pub(crate) guard: Guard,
    pub(crate) at: Moment,
    /// Whom it was waited for.
    pub(crate) behind: Option<Arc<str>>,
}

impl Acquired {
    /// What a store claim of its own has won.
    fn apart(core: &Arc<Core>, won: Won) -> Self {
        let Won { claim, grant, at, behind, .. } = won;
        if behind.is_some() {
            core.observer.metrics.handed_over(HandOver::Store);
        }
        let guard = Guard::new(core.clone(), claim, grant.token, false);
        Self { guard, at, behind }
    }

    /// Starts what is the guard's own.
    fn begin(mut self, plan: &Plan, wish: Wish<'_>) -> Guard {
        let story = wish.granted(self.at, self.behind, self.guard.owner(), self.guard.token());
        self.guard.begin(plan, story);
        self.guard
    }
}

/// Acquires with a store claim of its own.
pub(crate) async fn acquire_apart(
    core: &Arc<Core>,
    plan: &Arc<Plan>,
    wait: Wait,
    wish: &Wish<'_>,
) -> Result<Option<Acquired>> {
    let mut pending = Pending::new(core, plan.clone(), 1, 0);
    match pending.drive(wait, wish).await {
        Ok(Some(won)) => Ok(Some(Acquired::apart(core, won))),
        other => not_granted(pending, other).await,
    }
}

/// Withdraws a claim that was not granted.
async fn not_granted(pending: Pending, outcome: Result<Option<Won>>) -> Result<Option<Acquired>> {
    let withdrawn = pending.withdraw(outcome.as_ref().err()).await;
    outcome.map(|_| None).map_err(|error| error.unknown_if(!withdrawn))
}
