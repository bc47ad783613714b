//! What went wrong, how sure we are, and whether trying again can help.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::name::Name;

/// Result with tenure's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// "Somebody else holds it" is not an error of [`try_acquire`](crate::Lock::try_acquire): refusals a
/// program expects are values. An error tells its [`kind`](Self::kind), whether the operation may have
/// [taken effect](Self::certainty), whether trying again [can help](Self::is_retryable), and the store,
/// name and [step](Self::step) it concerns. It displays as one line.
///
/// ```
/// use tenure::{ErrorKind, Name};
///
/// let error = Name::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert!(!error.is_retryable());
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    certainty: Certainty,
    message: String,
    store: Option<String>,
    name: Option<Name>,
    step: Option<Step>,
    holder: Option<Holder>,
    loss: Option<Loss>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What an [`Error`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, ttl, owner, option or URL that is not allowed; or a call of [`blocking`](crate::blocking) in async code.
    /// Nothing was sent.
    Invalid,
    /// The claim cannot stand beside the live claims of this name: another number of permits,
    /// permits mixed with another shape, or an upgrade from shared to exclusive.
    Conflict,
    /// The claim was only to re-enter ([`Lock::reenter`](crate::Lock::reenter)), and its owner does not hold
    /// the name with that token.
    NotHeld,
    /// The URL names a store that this build does not contain.
    NotBuilt,
    /// The time to wait is over and the name was held by somebody else.
    Timeout,
    /// It waited in a deadlock, and was refused: by [`Session::refuse_deadlock`](crate::Session::refuse_deadlock), or
    /// by whoever broke the deadlock. The message names the cycle. Give back what is held before trying again.
    Deadlock,
    /// The store could not be reached, or did not answer.
    Unavailable,
    /// Too few nodes of a fleet took part; the message has the reason of each.
    Quorum,
    /// The store answers, but cannot be used: a full disk, a corrupt file, a newer schema.
    Store,
    /// The store refused the user or password, or the user lacks a right.
    Denied,
    /// Fewer replicas than asked for have the grant: it was given back.
    Replicas,
    /// The lease was lost; [`Error::loss`] says how.
    Lost,
    /// The client was closed, or the runtime it was connected on has ended.
    Closed,
}

impl ErrorKind {
    /// As programs are told it: `tenure … --json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::NotHeld => "not_held",
            Self::NotBuilt => "not_built",
            Self::Timeout => "timeout",
            Self::Deadlock => "deadlock",
            Self::Unavailable => "unavailable",
            Self::Quorum => "quorum",
            Self::Store => "store",
            Self::Denied => "denied",
            Self::Replicas => "replicas",
            Self::Lost => "lost",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a failed operation may have taken effect in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// It surely did not.
    NotApplied,
    /// It may have: the reply never came, or that to an earlier try of it. What it may have left behind is cleaned up
    /// in the background, and by the ttl at the latest.
    Unknown,
}

/// The step an [`Error`] happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Opening the store.
    Connect,
    /// Taking a lock, or waiting for it.
    Acquire,
    /// Keeping it.
    Renew,
    /// Giving it back.
    Release,
    /// Looking at names and their claims.
    Inspect,
    /// Ending other holders' claims.
    Break,
    /// Reading or writing what is kept with a name.
    Memo,
}

/// Who holds a name, as far as the store told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The human label of the holder: host, pid, purpose.
    pub label: String,
    /// How long it still holds unless it renews.
    pub expires_in: Duration,
    /// How many claims stand before this one, holders included; zero where the store keeps no order among them.
    pub ahead: usize,
}

/// Why a lease can no longer be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The deadline passed without an answered renewal.
    Expired,
    /// The store no longer has the claim: it expired there, or the store lost it.
    Gone,
    /// Somebody ended the claim.
    Broken {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// The lock's `max_hold` is over.
    MaxHold,
    /// The session the claim belonged to ended; or the runtime its client was connected on, so that nobody renews it
    /// any more.
    SessionEnded,
    /// The same claim was acquired again ([`Lock::repeatable`](crate::Lock::repeatable)): the later guard has it.
    TakenOver,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("the deadline passed without an answered renewal"),
            Self::Gone => f.write_str("the store no longer has the claim"),
            Self::Broken { by, reason } if reason.is_empty() => write!(f, "broken by {by}"),
            Self::Broken { by, reason } => write!(f, "broken by {by}: {reason}"),
            Self::MaxHold => f.write_str("held longer than max_hold allows"),
            Self::SessionEnded => f.write_str("the session ended"),
            Self::TakenOver => f.write_str("the same owner acquired it again"),
        }
    }
}

impl Error {
    /// A new error. Its certainty is [`NotApplied`](Certainty::NotApplied) for kinds that are decided
    /// before anything is sent or by the store's own answer, else [`Unknown`](Certainty::Unknown).
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let certainty = match kind {
            ErrorKind::Unavailable | ErrorKind::Quorum | ErrorKind::Store => Certainty::Unknown,
            _ => Certainty::NotApplied,
        };
        Self(Box::new(Inner {
            kind,
            certainty,
            message: message.into(),
            store: None,
            name: None,
            step: None,
            holder: None,
            loss: None,
            source: None,
        }))
    }

    pub(crate) fn lost(name: &Name, loss: Loss) -> Self {
        let mut error = Self::new(ErrorKind::Lost, format!("the lease was lost: {loss}")).about(name);
        error.0.loss = Some(loss);
        error
    }

    /// The same again, for each of those who shared a request.
    #[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "sqlite", feature = "zookeeper"))]
    pub(crate) fn again(&self) -> Self {
        let mut again = Self::new(self.0.kind, self.0.message.clone()).with_certainty(self.0.certainty);
        again.0.store.clone_from(&self.0.store);
        match &self.0.source {
            Some(source) => again.because(source.to_string()),
            None => again,
        }
    }

    /// Adds to what it says.
    #[cfg(feature = "redis")]
    #[must_use]
    pub(crate) fn adding(mut self, more: &str) -> Self {
        self.0.message.push_str(more);
        self
    }

    /// Sets whether the operation may have taken effect.
    #[must_use]
    pub fn with_certainty(mut self, certainty: Certainty) -> Self {
        self.0.certainty = certainty;
        self
    }

    /// Unknown, if an earlier try of the same operation was: an operation is as sure as the least sure of its tries.
    #[must_use]
    pub(crate) fn unknown_if(self, unknown: bool) -> Self {
        if unknown { self.with_certainty(Certainty::Unknown) } else { self }
    }

    /// Names the store (without a password).
    #[must_use]
    pub fn in_store(mut self, store: impl Into<String>) -> Self {
        self.0.store = Some(store.into());
        self
    }

    /// Names the lock.
    #[must_use]
    pub fn about(mut self, name: &Name) -> Self {
        self.0.name = Some(name.clone());
        self
    }

    /// Says at which step it happened.
    #[must_use]
    pub fn at(mut self, step: Step) -> Self {
        self.0.step = Some(step);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    pub(crate) fn held_by(mut self, holder: Option<Holder>) -> Self {
        self.0.holder = holder;
        self
    }

    /// What the error is about.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the operation may have taken effect.
    pub fn certainty(&self) -> Certainty {
        self.0.certainty
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Quorum | ErrorKind::Replicas)
    }

    /// The store, without a password.
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// The name of the lock.
    pub fn name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// The step it happened in.
    pub fn step(&self) -> Option<Step> {
        self.0.step
    }

    /// Who held the name, where that is why it failed.
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// How the lease was lost, where that is why it failed.
    pub fn loss(&self) -> Option<&Loss> {
        self.0.loss.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        if let Some(name) = &inner.name {
            write!(f, "{name}: ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(holder) = &inner.holder {
            write!(f, " (held by {}", holder.label)?;
            if holder.ahead > 0 {
                write!(f, ", place {}", holder.ahead)?;
            }
            f.write_str(")")?;
        }
        if let Some(store) = &inner.store {
            write!(f, " [{store}]")?;
        }
        if inner.certainty == Certainty::Unknown && inner.step == Some(Step::Acquire) {
            f.write_str("; the outcome is unknown, a claim it may have left ends with its ttl")?;
        }
        match &inner.source {
            Some(source) => write!(f, ": {}", with_causes(&**source)),
            None => Ok(()),
        }
    }
}

/// The text of an error and of its causes; what one repeats of the one before it is left out.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        f.debug_struct("Error")
            .field("kind", &inner.kind)
            .field("certainty", &inner.certainty)
            .field("message", &inner.message)
            .field("store", &inner.store)
            .field("name", &inner.name)
            .field("step", &inner.step)
            .field("holder", &inner.holder)
            .field("loss", &inner.loss)
            .field("source", &inner.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
