//! The contract between the engine and a store.
//!
//! A backend is small: it keeps queues of claims ([`machine`](crate::machine)) somewhere, answers for
//! them, and tells a waiting client when its claim is granted. Refusals are values; `Err` means that we
//! could not ask, or cannot know. Everything users enjoy (waiting, renewing, stopping lost work, handing
//! over in memory) is the engine's and written once.
//!
//! The `# Behaviour` lists of [`Backend`]'s methods are word for word the cases of the conformance suite
//! in `tenure-testkit`: each bullet is a test that every backend passes, also when replies fail or never
//! come.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;

use crate::clock::Moment;
use crate::doctor::Checkup;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::machine::{Grant, NameView};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

pub use crate::connect::open;
pub use crate::machine::{ClaimRequest, Place, Refusal, Shape, Standing};
pub use crate::memo::{Memo, MemoKind, MemoWrite, MemoWritten, MemosSurvive};

/// A call to a store under way. It owns what it needs, so that it can be finished by another task than
/// the one that began it.
pub type Call<T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'static>>;

/// A call that any thread may wait for, also one without a runtime or with another: whatever timers and connections it
/// makes are those of `runtime`, which is that of the client.
pub fn carried<T>(runtime: &Handle, work: impl Future<Output = Result<T>> + Send + 'static) -> Call<T> {
    let runtime = runtime.clone();
    Box::pin(async move {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let _here = runtime.enter();
            work.as_mut().poll(cx)
        })
        .await
    })
}

/// An answer, and the moment from which the claim's ttl surely counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What the store answered.
    pub value: T,
    /// A clock reading from before the request was sent (on stores that keep a lease or session alive
    /// for the claim: from before its last counted renewal).
    pub counted_from: Moment,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is in the queue, holding or waiting.
    Stands(Standing),
    /// Somebody else holds it, and the claim was not to wait.
    Busy(Place),
    /// It can never be granted beside the live claims of this name.
    Refused(Refusal),
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// It lives for another ttl; how it stands.
    Stands(Standing),
    /// The store does not have the claim.
    Gone,
    /// The claim was broken.
    Broken {
        /// Who broke it.
        by: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// This one of the batch was not answered, or not with what it asks for; why.
    Unknown(Arc<str>),
}

/// How many replicas must have a grant before it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// At least so many.
    AtLeast(u32),
    /// So many that they and the master are more than half of all, those that are away included. Where the store cannot
    /// tell how many there should be ([`Capabilities::majority`]), the URL has to.
    Majority,
}

/// Why a majority is refused where nobody says of how many.
pub(crate) const MAJORITY_OF_WHAT: &str = "min_replicas(majority): the server tells how many replicas are connected, not how many \
    there should be; add replicas=N to the URL (redis://HOST?replicas=2), or ask for a number";

impl From<u32> for Replicas {
    fn from(count: u32) -> Self {
        Self::AtLeast(count)
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(count) => write!(f, "{count}"),
            Self::Majority => f.write_str("majority"),
        }
    }
}

/// The answer to a question for replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// How many replicas have everything that was answered before the question.
    pub acknowledged: u64,
    /// How many were asked for.
    pub needed: u64,
}

impl Confirmed {
    /// Whether they are enough.
    pub fn is_enough(self) -> bool {
        self.acknowledged >= self.needed
    }
}

/// The answer to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was ended by this request.
    Yes,
    /// The store does not have the claim.
    NotFound,
    /// The claim had been broken.
    Broken {
        /// Who broke it.
        by: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// It holds by now, and was to end only while it waits: nothing changed.
    Holds,
}

/// The answer to a request for the next block of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// The claim holds, with this block.
    Given(Grant),
    /// The claim was ended because others wait; this is the next task's claim.
    Moved(Standing),
    /// The store has neither claim.
    Gone,
    /// The claim was broken.
    Broken {
        /// Who broke it.
        by: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
}

/// A claim to renew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewRequest {
    /// The name.
    pub name: Name,
    /// The claim.
    pub id: ClaimId,
    /// Whose claim it is.
    pub owner: Owner,
    /// For how long; a shorter ttl than it has keeps the longer one.
    pub ttl: Duration,
    /// Only if the store gave it this number: a claim that has another is left as it is and where it is, and the answer
    /// tells its present number. (What keeps several claims alive at once, such as a lease of etcd, may be renewed all
    /// the same.) A store without a queue need not look at it.
    pub number: Option<u64>,
}

impl RenewRequest {
    /// Renews this claim for its ttl, whatever its number.
    pub fn of(name: &Name, claim: &ClaimRequest) -> Self {
        Self { name: name.clone(), id: claim.id, owner: claim.owner.clone(), ttl: claim.ttl, number: None }
    }

    /// Whether it means the claim that has this number.
    pub fn means(&self, number: u64) -> bool {
        self.number.is_none_or(|meant| meant == number)
    }
}

/// A claim to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// The claim.
    pub id: ClaimId,
    /// Whose claim it is.
    pub owner: Owner,
    /// Only if the store gave it this number.
    pub number: Option<u64>,
    /// Only if it still waits: should it hold by now, nothing changes and the answer is [`Released::Holds`].
    pub waiting_only: bool,
}

impl ReleaseRequest {
    /// Ends this claim, waiting or holding, whatever its number.
    pub fn new(owner: Owner, id: ClaimId) -> Self {
        Self { id, owner, number: None, waiting_only: false }
    }

    /// The same, for a claim as it was asked for.
    pub fn of(claim: &ClaimRequest) -> Self {
        Self::new(claim.owner.clone(), claim.id)
    }

    /// The same, only if the store gave it this number.
    #[must_use]
    pub fn with_number(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }
}

/// Whom to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakRequest {
    /// Only this owner's claims.
    pub owner: Option<Owner>,
    /// Only holders whose token is at most this.
    pub up_to: Option<Token>,
    /// Who breaks.
    pub by: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
}

impl BreakRequest {
    /// Evicts all holders.
    pub fn all(by: impl Into<Arc<str>>, reason: impl Into<Arc<str>>) -> Self {
        Self { owner: None, up_to: None, by: by.into(), reason: reason.into() }
    }
}

/// Which waiting claim to end, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterBreak {
    /// The claim, as views show it.
    pub id: ClaimId,
    /// Only if the store gave it this number.
    pub number: u64,
    /// Who breaks.
    pub by: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
}

/// Names that somebody waits for, as far as one request found them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitedFor {
    /// The names, in byte order.
    pub views: Vec<NameView>,
    /// The name to go on after; none if there are no more. There may be more although nothing was found.
    pub after: Option<Name>,
}

impl WaitedFor {
    /// Of a page of a scan, those names that somebody waits for.
    pub fn among(mut views: Vec<NameView>) -> Self {
        let after = views.last().map(|view| view.name.clone());
        views.retain(|view| !view.waiters.is_empty());
        Self { views, after }
    }
}

/// What a backend tells its client without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A waiting claim of this client was granted.
    Granted {
        /// Which.
        id: ClaimId,
        /// What it was given.
        grant: Grant,
        /// The number the store gave it at its append.
        number: u64,
    },
    /// A claim of this client was ended by somebody else.
    Ended {
        /// Which.
        id: ClaimId,
        /// The number the store gave it.
        number: u64,
        /// How.
        loss: Loss,
    },
    /// A name that a claim of this client was refused is free, and kept for it for a moment: ask again now.
    TryNow {
        /// Which.
        id: ClaimId,
        /// The name.
        name: Name,
        /// The token of the claim that ended, if it is known; else zero.
        after: Token,
    },
    /// Events may have been missed: ask for every claim now.
    Resubscribed,
}

/// Where a backend delivers its [`Event`]s. Called from any thread; never blocks; never calls back
/// into the backend.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// What a store can do beyond excluding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Claims wait in the store, in order; without it the engine asks again and again.
    pub queue: bool,
    /// Without a queue, a claim that would wait is told when it is worth asking again ([`Event::TryNow`]).
    pub hints: bool,
    /// A claim that waits is told of its grant at once; without it the store is looked at again and again, and a
    /// hand-over takes up to a second.
    pub pushes: bool,
    /// A holder is told at once that its claim was broken; without it, at its next renewal.
    pub alerts: bool,
    /// Grants carry fencing tokens.
    pub tokens: bool,
    /// Tokens can be reserved in blocks, so that tasks of one process may hand over in memory.
    pub blocks: bool,
    /// Shared claims.
    pub shared: bool,
    /// Permits.
    pub permits: bool,
    /// An owner that holds may re-enter.
    pub sessions: bool,
    /// It can tell how many replicas have a grant.
    pub replicas: bool,
    /// It can tell how many replicas there should be, so that a majority of them means something.
    pub majority: bool,
    /// A claim keeps its label, its ttl and when it was granted; not where the layout is another library's.
    pub records: bool,
    /// A broken holder is told who broke it and why, not only that its claim is gone.
    pub notes: bool,
    /// A claim that waits can be ended by others, and its client is told who did and why.
    pub waiter_breaks: bool,
    /// A small value can be kept with a name, which only its exclusive holder writes.
    pub memos: bool,
    /// It can tell its wall clock's time.
    pub time: bool,
    /// The shortest ttl it keeps.
    pub ttl_min: Duration,
    /// The longest ttl it keeps.
    pub ttl_max: Duration,
    /// What is known of a lease is so old at least: it counts from this long before its latest renewal, and so much
    /// of the ttl is not there to be used.
    pub lease_lag: Duration,
}

impl Capabilities {
    /// Everything but replicas, with tenure's own limits of the ttl.
    pub const ALL: Self = Self {
        queue: true,
        hints: false,
        pushes: true,
        alerts: true,
        tokens: true,
        blocks: true,
        shared: true,
        permits: true,
        sessions: true,
        replicas: false,
        majority: false,
        records: true,
        notes: true,
        waiter_breaks: true,
        memos: true,
        time: true,
        ttl_min: crate::TTL_MIN,
        ttl_max: crate::TTL_MAX,
        lease_lag: Duration::ZERO,
    };

    /// The shortest and the longest ttl that it can keep. Of one that is not twice what its leases lag by, too little
    /// is left to renew it in.
    pub fn ttl_limits(&self) -> (Duration, Duration) {
        (self.ttl_min.max(self.lease_lag * 2).max(crate::TTL_MIN), self.ttl_max.min(crate::TTL_MAX))
    }

    /// The ttl closest to this one that it can keep.
    pub fn nearest_ttl(&self, ttl: Duration) -> Duration {
        let (min, max) = self.ttl_limits();
        ttl.min(max).max(min)
    }

    /// The same without a queue: the engine then polls.
    #[must_use]
    pub fn without_queue(mut self) -> Self {
        self.queue = false;
        self.pushes = false;
        self.alerts = false;
        self.blocks = false;
        self.waiter_breaks = false;
        self
    }
}

/// What a store's locks and tokens survive, readable at run time.
///
/// Each line says what happens to exclusion and to tokens when that fault strikes. `Kept` means: no two
/// leases are valid at once, under the assumptions the backend's page names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The store, as in its URL's scheme.
    pub store: &'static str,
    /// Whose clock decides when a claim dies.
    pub time: &'static str,
    /// A client crashes: its claims end one ttl later at the latest.
    pub client_crash: Survival,
    /// A client is paused past its deadline: it is told at once when it wakes, and its token is stale.
    pub client_pause: Survival,
    /// The store crashes and comes back: its server, or the machine for a store without one.
    pub store_crash: Survival,
    /// The store fails over to a replica.
    pub failover: Survival,
    /// The network splits.
    pub partition: Survival,
    /// The store's wall clock steps.
    pub clock_step: Survival,
    /// When tokens keep growing.
    pub tokens: &'static str,
    /// What becomes of memos; none where the store keeps none.
    pub memos: Option<MemosSurvive>,
}

/// What a fault does to locks that are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Survival {
    /// Exclusion holds.
    Kept,
    /// Exclusion holds, since every claim ends.
    ClaimsEnd,
    /// Two leases may be valid at once: only the token protects the resource.
    FencedOnly,
    /// Two leases may be valid at once, and there is no token.
    Unprotected,
    /// Cannot happen with this store.
    Never,
}

impl fmt::Display for Survival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::ClaimsEnd => "claims end",
            Self::FencedOnly => "only the token protects",
            Self::Unprotected => "not protected",
            Self::Never => "cannot happen",
        })
    }
}

/// One client's access to a store.
///
/// # Behaviour
///
/// - tokens strictly increase from holder to holder
/// - an expired claim never blocks the next one
/// - a claim that nobody renews ends at its ttl
/// - names are independent of each other
/// - any printable name works
/// - eight clients at once never hold together
/// - calls may be made by threads without a runtime
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What the store can do.
    fn capabilities(&self) -> Capabilities;

    /// What its locks survive.
    fn guarantees(&self) -> Guarantees;

    /// The store's URL without a password, for messages.
    fn url(&self) -> &str;

    /// Sets where events go. Called once, before any claim.
    fn listen(&self, listener: Listener);

    /// Appends a claim, or answers for it again and renews it.
    ///
    /// # Behaviour
    ///
    /// - a free name is granted at once
    /// - a held name is busy for a claim that does not wait
    /// - a busy claim leaves nothing behind
    /// - a claim that waits is told its place and who holds
    /// - waiting claims are granted in the order they came
    /// - the same claim id again answers the same grant and renews it
    /// - the same claim id again keeps its place in the queue
    /// - shared claims hold together and exclude exclusive ones
    /// - a reader behind a waiting writer waits
    /// - permits hold together up to their number
    /// - another number of permits is refused with both named
    /// - permits and another shape do not mix
    /// - an owner that holds re-enters with the same token past any waiter
    /// - a re entered holding ends with its last claim
    /// - shared within exclusive stays exclusive until the exclusive claim ends
    /// - exclusive within shared is refused
    /// - permits within permits of one owner are refused
    /// - re entry only is refused unless the owner holds with that token
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: whoever cancels releases the claim by its id.
    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>>;

    /// Renews claims, waiting or holding; one answer for each, in order. `fresh` asks not to share a
    /// connection with earlier calls, one of which may hang.
    ///
    /// # Behaviour
    ///
    /// - a renewal keeps a claim alive beyond its first ttl
    /// - a renewal keeps a waiting claim in its place
    /// - a renewal answers that a waiting claim holds by now
    /// - a shorter ttl keeps the longer one
    /// - a renewal that names another number changes nothing
    /// - a renewal of a claim the store lacks answers gone and puts nothing back
    /// - a batch answers for each claim in order
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that arrives late only lengthens a live claim.
    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>>;

    /// Ends a claim, waiting or holding, unless the request says which of the two, or which number it has. All of
    /// that is looked at in the step that ends it.
    ///
    /// # Behaviour
    ///
    /// - a release grants the next claim and its client hears of it
    /// - a release ends only its own claim
    /// - a repeated release changes nothing
    /// - a release of a waiting claim gives up its place
    /// - a release with another number changes nothing
    /// - a release of a waiting claim only ends it while it waits
    /// - a release of a waiting claim only leaves one that holds
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat it, or leave the claim to its ttl.
    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released>;

    /// Gives up the place of a claim that was told to ask again ([`Event::TryNow`]) and does not want to: the next
    /// one is told. Should the claim hold, it goes on. Only called where [`Capabilities::hints`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the place is kept a moment longer.
    fn decline(&self, _name: &Name, _id: ClaimId) -> Call<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The client will claim nothing more: gives back what the store keeps for its next claim. Claims that live stay.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was not given back ends by itself.
    fn close(&self) -> Call<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Asks for the block of tokens after the one that ends with `block_end`, for the claim `id`. Only
    /// called where [`Capabilities::blocks`].
    ///
    /// # Behaviour
    ///
    /// - a block reserves tokens that nobody else is given
    /// - the next block is given while nobody waits
    /// - the next block is the release when somebody waits
    /// - a next block request that names another block changes nothing
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat the same request and the answer is the same.
    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, next: ClaimRequest) -> Call<Answer<Block>>;

    /// Ends all holders' claims, or those that the request names; answers how many claims ended.
    ///
    /// # Behaviour
    ///
    /// - a break ends the holder and the next token is higher
    /// - a broken holder is told who and why
    /// - a break of one owner leaves the others
    /// - a break of a free name ends nothing
    /// - a break up to a token leaves who was granted after it
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: look with [`inspect`](Self::inspect).
    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize>;

    /// Ends one claim while it waits, and leaves a note for its client. False if it holds by now, or is gone, or has
    /// another number. All of that is looked at in the step that ends it. Only called where
    /// [`Capabilities::waiter_breaks`].
    ///
    /// # Behaviour
    ///
    /// - a break of a waiter ends it and it is told who and why
    /// - a break of a waiter leaves one that holds and one with another number
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat it.
    fn break_waiter(&self, name: &Name, _request: WaiterBreak) -> Call<bool> {
        let error = Error::new(ErrorKind::Invalid, "this store ends no claims of others that wait").about(name);
        Box::pin(async { Err(error) })
    }

    /// Who holds a name and who waits for it.
    ///
    /// # Behaviour
    ///
    /// - inspect shows holders and waiters in order
    /// - inspect tells the shape of each holder and waiter
    /// - inspect of a free name is empty
    /// - inspect tells what a claim runs within
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    fn inspect(&self, name: &Name) -> Call<NameView>;

    /// What views show of a claim: its owner and its id. The same as given, unless the store is reached through a
    /// service that gives claims other ids.
    fn shown(&self, owner: &Owner, _name: &Name, id: ClaimId) -> (Owner, ClaimId) {
        (owner.clone(), id)
    }

    /// Names in use that begin with `prefix`, in byte order, after `after`, at most `limit`.
    ///
    /// # Behaviour
    ///
    /// - a scan lists names in use by prefix in pages
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>>;

    /// Names that somebody waits for, in byte order, after `after`; of at most `limit` names that it looks at. A store
    /// that can find them without reading all others does so.
    ///
    /// # Behaviour
    ///
    /// - names that somebody waits for are found among others
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        let page = self.scan("", after, limit);
        Box::pin(async { Ok(WaitedFor::among(page.await?)) })
    }

    /// Writes the memo of a name. The store looks in the step that writes it whether the claim holds the name
    /// exclusively, with the token in its present block, and whether the memo has the version to replace. Only called
    /// where [`Capabilities::memos`], with at most [`MEMO_BYTES_MAX`](crate::MEMO_BYTES_MAX) bytes.
    ///
    /// # Behaviour
    ///
    /// - the exclusive holder writes a memo that anyone reads
    /// - a memo of the largest size comes back as it was written
    /// - a waiter and a stranger write no memo
    /// - a reader and a holder of permits write no memo
    /// - an expired or broken holder writes no memo
    /// - an earlier holder writes no memo
    /// - a memo is written with a token of the present block only
    /// - a memo write with another number changes nothing
    /// - a memo write over another version changes nothing and answers the present memo
    /// - the same memo write again is one write
    /// - a late copy of a memo write changes nothing
    /// - a memo of another kind is refused
    /// - a memo outlives the claims of its name
    /// - a memo ends when its time to be kept is over
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat the same request and the answer is the same.
    fn write_memo(&self, name: &Name, _write: MemoWrite) -> Call<MemoWritten> {
        let error = Error::new(ErrorKind::Invalid, "this store keeps no memos").about(name);
        Box::pin(async { Err(error) })
    }

    /// The memo of a name, as it was when all writes that were answered before had been made. Only called where
    /// [`Capabilities::memos`].
    ///
    /// # Behaviour
    ///
    /// - a name without a memo has none
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let error = Error::new(ErrorKind::Invalid, "this store keeps no memos").about(name);
        Box::pin(async { Err(error) })
    }

    /// The store's wall clock. Only called where [`Capabilities::time`].
    ///
    /// # Behaviour
    ///
    /// - the store tells the time
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    fn time(&self) -> Call<SystemTime> {
        Box::pin(async { Err(Error::new(ErrorKind::Invalid, "this store does not tell the time")) })
    }

    /// Renews a claim that holds, and answers how many replicas have it; waits a moment for enough of them. An error
    /// if the server whose replicas were asked does not have the claim. Only called where [`Capabilities::replicas`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the claim was renewed.
    fn confirm(&self, claim: RenewRequest, replicas: Replicas) -> Call<Confirmed> {
        let error = Error::new(ErrorKind::Invalid, format!("this store has no replicas to wait for ({replicas})"));
        let error = error.about(&claim.name);
        Box::pin(async { Err(error) })
    }

    /// Writes a memo once more that was written, and answers how many replicas have it; waits a moment for enough of
    /// them. `write.after` is the version that was answered, so that a server without the memo is left as it is; an
    /// error if the server whose replicas were asked is one. Only called where [`Capabilities::replicas`] and
    /// [`Capabilities::memos`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    fn confirm_memo(&self, name: &Name, _write: MemoWrite, replicas: Replicas) -> Call<Confirmed> {
        let error = Error::new(ErrorKind::Invalid, format!("this store has no replicas to wait for ({replicas})"));
        let error = error.about(name);
        Box::pin(async { Err(error) })
    }

    /// Looks at the store itself for what makes locks unsafe or slow there. What cannot be looked at is told, not
    /// failed for. Nothing, unless a store knows better.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    fn examine(&self) -> Call<Checkup> {
        Box::pin(std::future::ready(Ok(Checkup::default())))
    }
}
