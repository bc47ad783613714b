//! What the parts of one client share.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::cohort::Cohorts;
use super::deadlock::LastLook;
use super::errands::{Ending, Errands};
use super::live::LiveClaim;
use super::registry::{Key, Kind, Registry};
use super::request::{Asked, Request};
use super::runtime::Alive;
use super::watchdog::{self, next_ask};
use crate::backend::{Answer, Backend, Claimed, Event, Released};
use crate::clock::{Clock, Moment};
use crate::deadlocks;
use crate::error::{Certainty, Error, ErrorKind, Loss, Result, Step};
use crate::lease;
use crate::name::Name;
use crate::observe::{Groups, Observer, Operation, scheme};
use crate::recipes::LocalCache;

/// The pause between two tries of background work.
pub(super) const ERRAND_PAUSE: Duration = Duration::from_millis(100);
/// How long the answer to a request is looked after whose task does nothing.
const ATTENDED_MIN: Duration = Duration::from_millis(250);
const ATTENDED_MAX: Duration = Duration::from_secs(5);
/// How long one try of a release may go unanswered.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// What all locks of a client have in common, unless they choose otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    /// What all names begin with.
    pub(crate) prefix: Box<str>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) groups: Groups,
}

/// A client: its store, its clock, its claims.
pub(crate) struct Core {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) registry: Registry,
    pub(crate) cohorts: Cohorts,
    pub(crate) label: Arc<str>,
    pub(crate) defaults: Defaults,
    pub(crate) observer: Observer,
    pub(crate) closed: AtomicBool,
    /// Whether the runtime it was connected on has ended.
    pub(super) over: AtomicBool,
    /// Whether the store answered the last claim or renewal.
    pub(crate) reachable: AtomicBool,
    /// When the latest of the requests was sent that the store answered, in microseconds.
    answered: AtomicU64,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) errands: Arc<Errands>,
    pub(super) last_look: LastLook,
    /// What was cached here, and who asks for more.
    pub(super) cached: LocalCache,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("backend", &self.backend).field("claims", &self.registry.claims()).finish()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Wakes the watchdog, which finds its client gone and ends.
        self.registry.bell.notify_one();
        self.observer.metrics.tell();
    }
}

impl Core {
    /// Starts a client on the current runtime.
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        label: Arc<str>,
        defaults: Defaults,
    ) -> Arc<Self> {
        let runtime = tokio::runtime::Handle::current();
        let registry = Registry::default();
        let core = Arc::new(Self {
            observer: Observer::new(
                scheme(backend.url()),
                defaults.groups.clone(),
                &defaults.prefix,
                registry.bell.clone(),
            ),
            backend,
            clock,
            registry,
            cohorts: Cohorts::default(),
            label,
            defaults,
            closed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            reachable: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            runtime,
            errands: Arc::default(),
            last_look: LastLook::default(),
            cached: LocalCache::default(),
        });
        let listener = Arc::downgrade(&core);
        core.backend.listen(Arc::new(move |event| {
            if let Some(core) = listener.upgrade() {
                core.hear(event);
            }
        }));
        let bell = core.registry.bell.clone();
        let alive = Alive(Arc::downgrade(&core));
        let watch = watchdog::watch(Arc::downgrade(&core), bell, core.clock.clone());
        core.runtime.spawn(async move {
            watch.await;
            drop(alive);
        });
        core
    }

    /// A name as the store has it.
    pub(crate) fn name(&self, name: &str) -> Result<Name> {
        let short = Name::new(name)?;
        let prefix = &self.defaults.prefix;
        if prefix.is_empty() { Ok(short) } else { Name::new(format!("{prefix}{name}")) }
    }

    fn hear(self: &Arc<Self>, event: Event) {
        match event {
            Event::Granted { id, grant, number } => {
                if let Some(claim) = self.registry.find_granted(id) {
                    claim.granted(grant, number);
                }
            }
            Event::Ended { id, number, loss } => {
                if let Some(claim) = self.registry.find(id).filter(|claim| claim.number() == Some(number)) {
                    self.lose(&claim, loss);
                }
            }
            Event::TryNow { id, name, .. } => match self.registry.find(id) {
                Some(claim) => claim.nudge(),
                // Given up meanwhile: the next may have it.
                None => {
                    let declined = self.backend.decline(&name, id);
                    self.errand(Box::pin(async move { drop(declined.await) }));
                }
            },
            Event::Resubscribed => self.registry.ask_for_all(self.clock.now()),
        }
    }

    /// Ends the trust in a claim: tells its guard, lets the next local task try anew, and ends what
    /// the store may still have of it.
    pub(crate) fn lose(self: &Arc<Self>, claim: &Arc<LiveClaim>, loss: Loss) {
        self.registry.remove(claim);
        let overdue = self.clock.now().since(claim.deadline());
        if !overdue.is_zero() {
            // It may have ended by itself, which says nothing of the store: what the holder renewed until then is
            // over a ttl later. The third is for the way that the last answer took.
            let ttl = claim.plan.ttl;
            claim.limit_holder((ttl + ttl / 3).saturating_sub(overdue).min(ttl));
        }
        if let Some(was_granted) = claim.lose(loss.clone()) {
            self.follow_loss(claim, &loss, was_granted);
        }
    }

    /// What is left to do once a loss is told: the next local task tries anew, and what the store may still have of
    /// the claim is ended.
    pub(crate) fn follow_loss(self: &Arc<Self>, claim: &Arc<LiveClaim>, loss: &Loss, was_granted: bool) {
        if was_granted {
            if claim.is_taken() {
                self.observer.metrics.of(&claim.plan.name).lost(loss);
            }
            tracing::warn!(name = %claim.plan.name, owner = %claim.owner, %loss, "lease lost");
        } else if deadlocks::note_in(loss).is_some() {
            tracing::warn!(name = %claim.plan.name, owner = %claim.owner, %loss, "refused, for it waited in a deadlock");
        } else if *loss != Loss::TakenOver {
            tracing::warn!(name = %claim.plan.name, owner = %claim.owner, %loss, "place in the queue lost: asked for anew");
        }
        self.cohorts.lost(self, claim);
        if matches!(loss, Loss::Expired | Loss::MaxHold) {
            self.end_later(Ending::of(claim, claim.number()));
        }
    }

    /// A task takes the grant of a claim: from now on it is kept alive.
    pub(crate) fn take(&self, claim: &LiveClaim) {
        if claim.take() && claim.plan.renewed {
            self.registry.schedule(claim.id, self.clock.now());
        }
    }

    /// Resolves at `at`.
    pub(crate) fn alarm(self: &Arc<Self>, at: Moment) -> Alarm {
        Alarm { core: self.clone(), at, request: None, key: None }
    }

    /// Takes note of whether the store answered what was sent then; what it answered does not matter here.
    pub(crate) fn reached<T>(&self, sent: Moment, answer: Option<std::result::Result<T, &Error>>) {
        let silent = match answer {
            Some(Ok(_)) => false,
            Some(Err(error)) => matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Quorum),
            None => true,
        };
        if !silent {
            self.answered.fetch_max(sent.as_micros(), Ordering::AcqRel);
        }
        let was_reachable = self.reachable.swap(!silent, Ordering::AcqRel);
        if silent || !was_reachable {
            self.observer.metrics.store_is(&self.reachable);
        }
        if !was_reachable && !silent {
            self.registry.store_answered(self.clock.now());
        }
    }

    /// When the latest of the requests was sent that the store answered, of whichever claim.
    pub(super) fn last_answered(&self) -> Moment {
        Moment(self.answered.load(Ordering::Acquire))
    }

    /// Ends a claim in the background, as long as the store may have it.
    pub(crate) fn release_behind(self: &Arc<Self>, claim: &LiveClaim) {
        self.end_behind(Ending::of(claim, claim.number()));
    }

    /// The same for another claim with its id, which the store gave this number.
    pub(crate) fn release_number_behind(self: &Arc<Self>, claim: &LiveClaim, number: u64) {
        self.end_behind(Ending::of(claim, Some(number)));
    }

    /// Awaits `work` until `limit`, or until the client's runtime ends. Polls the work first, so that a ready one
    /// costs neither a look at the clock nor a timer.
    pub(crate) async fn within<T>(
        self: &Arc<Self>,
        limit: impl Fn() -> Option<Moment>,
        mut work: impl Future<Output = T> + Unpin,
    ) -> Option<T> {
        let mut alarm = None;
        poll_fn(|cx| {
            let over = self.is_over();
            if over && self.is_without_runtime() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(output) = Pin::new(&mut work).poll(cx) {
                return Poll::Ready(Some(output));
            }
            if over {
                return Poll::Ready(None);
            }
            let alarm: &mut Option<Alarm> = alarm.get_or_insert_with(|| limit().map(|limit| self.alarm(limit)));
            let Some(alarm) = alarm else { return Poll::Pending };
            Pin::new(alarm).poll(cx).map(|()| None)
        })
        .await
    }

    /// Awaits the answer to a request until `limit`. If this future does nothing for a third of the ttl, somebody else
    /// takes note of the answer.
    pub(crate) async fn answer_within(
        self: &Arc<Self>,
        limit: impl Fn() -> Moment,
        request: &Arc<Request>,
    ) -> Option<Asked> {
        let mut alarm: Option<Alarm> = None;
        poll_fn(|cx| {
            if self.is_over() {
                return Poll::Ready(request.give_up());
            }
            if let Poll::Ready(answer) = request.poll(cx) {
                return Poll::Ready(answer);
            }
            let alarm = alarm.get_or_insert_with(|| {
                let mut alarm = self.alarm(limit());
                alarm.request = Some(request.clone());
                alarm
            });
            Pin::new(alarm).poll(cx).map(|()| request.give_up())
        })
        .await
    }

    /// The task that asked for a claim has done nothing for a while, and perhaps never will: a claim that nobody
    /// takes is then to end with its ttl like any other.
    pub(crate) fn attend(self: &Arc<Self>, request: Arc<Request>, asker: Waker) {
        let Some(call) = request.attend(asker) else { return };
        let core = self.clone();
        self.runtime.spawn(async move {
            let claim = &request.claim;
            let since = core.clock.now();
            let limit = || Some(core.clock.now() + claim.plan.ttl.clamp(ATTENDED_MIN, ATTENDED_MAX));
            let answer = core.within(limit, call).await.unwrap_or_else(|| Err(core.no_answer()));
            core.reached(since, Some(answer.as_ref()));
            if let Ok(Answer { value: Claimed::Stands(standing), counted_from }) = &answer {
                if claim.answered(standing, *counted_from) {
                    core.registry.schedule(claim.id, next_ask(claim, standing, *counted_from));
                }
            } else if request.is_awaited() {
                // No ttl ends the turn of a leader whose claim is not there. One that has given this request up goes
                // on by itself.
                core.cohorts.miss(&core, &claim.plan.name, claim.term, core.clock.now() + claim.plan.ttl);
            }
            request.answered(answer);
        });
    }

    pub(crate) fn refuse_if_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the client was closed").in_store(self.backend.url()));
        }
        self.refuse_if_over()
    }
}

/// The error of a request whose reply never came.
pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, "the store did not answer").with_certainty(Certainty::Unknown)
}

/// Releases a claim, again and again until the store answers or, a ttl later, the claim is surely dead.
///
/// A second "not found" after an unanswered try is a success, unless it was begun after the claim's deadline: it was
/// ours.
pub(crate) fn release(
    core: Arc<Core>,
    claim: &LiveClaim,
    number: Option<u64>,
) -> impl Future<Output = Result<Released>> + Send + use<> {
    let (name, request) = (claim.plan.name.clone(), claim.ending(number));
    let (ttl, deadline) = (claim.plan.ttl, claim.deadline());
    async move {
        // Whether a try may have been applied.
        let mut unknown = false;
        let started = OnceLock::new();
        let started = || *started.get_or_init(|| core.clock.now());
        loop {
            let trip = core.observer.metrics.sent(Operation::Release, core.clock.now());
            let call = core.backend.release(&name, request.clone());
            let limit = || Some(lease::about((started() + ttl).min(core.clock.now() + RELEASE_TIMEOUT)));
            let answer = core.within(limit, call).await;
            if let Some(Ok(_)) = &answer {
                core.observer.metrics.answered(trip, &*core.clock);
            }
            let failure = match answer {
                Some(Ok(Released::NotFound)) if unknown && started() < deadline => return Ok(Released::Yes),
                Some(Ok(released)) => return Ok(released),
                Some(Err(error)) => error,
                None => core.no_answer(),
            };
            unknown |= failure.certainty() == Certainty::Unknown;
            if core.is_over() || core.clock.now() + ERRAND_PAUSE >= started() + ttl {
                return Err(failure.unknown_if(unknown).at(Step::Release).about(&name));
            }
            core.alarm(core.clock.now() + ERRAND_PAUSE).await;
        }
    }
}

/// See [`Core::alarm`].
pub(crate) struct Alarm {
    core: Arc<Core>,
    at: Moment,
    /// What is to be looked after, should nobody poll this.
    request: Option<Arc<Request>>,
    key: Option<Key>,
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The first time the watchdog looks at the clock: most alarms are for answers that come long before.
        if let Some(key) = self.key.take() {
            self.core.registry.remove_timer(key);
            if self.core.clock.now() >= self.at {
                return Poll::Ready(());
            }
        }
        let waker = cx.waker().clone();
        self.key = Some(match self.request.clone() {
            None => self.core.registry.add_timer(Kind::Alarm(waker), self.at),
            Some(request) => {
                let mut attend_at = self.at;
                if request.claim.plan.ttl / 3 < ATTENDED_MIN {
                    attend_at = attend_at.min(self.core.clock.now() + request.claim.plan.ttl / 3);
                }
                self.core.registry.add_timer(Kind::Unanswered(request, waker), attend_at)
            }
        });
        // Nobody wakes what was added since the runtime ended.
        if self.core.is_over() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.registry.remove_timer(key);
        }
    }
}
