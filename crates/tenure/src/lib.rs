//! Locks between processes and machines that say when they are lost.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! use tenure::Tenure;
//!
//! let tenure = Tenure::connect("memory:").await?; // or sqlite:PATH
//! let guard = tenure.lock("orders/42").acquire().await?; // waits its turn
//! let receipt = guard.protect(async { "shipped" }).await?; // ends with the lease
//! println!("{receipt} under token {:?}", guard.token());
//! guard.release().await?; // or drop it
//! # Ok(()) }
//! ```
//!
//! # The tour
//!
//! - [`Tenure`] is a client of one store; its URL picks the store and nothing else in a program changes.
//! - [`Lock`] is a name and how to hold it: [`Tenure::lock`] (one holder), [`Tenure::rwlock`] (many readers or
//!   one writer), [`Tenure::semaphore`] (k of n). Claims wait in the store, first come, first served.
//! - [`Guard`] is the lease. A background task renews it; [`Guard::lost`] resolves *before* anybody else can be
//!   granted the lock, and [`Guard::protect`] stops the work then.
//! - [`Token`] is the fencing number of a grant: it grows from holder to holder. [`fence`] refuses what a holder
//!   does that was paused past its deadline, which no lease can.
//! - [`Session`] is one owner for several claims: its locks re-enter.
//! - [`deadlocks`] are owners that wait for each other: [`Tenure::deadlocks`], [`Session::refuse_deadlock`].
//! - [`Memo`] is a small value kept with a name: [`Guard::write_memo`], [`Tenure::memo`]. Only the exclusive holder
//!   writes it, and the store checks that in the step that writes it.
//! - [`blocking`] has all of it without async.
//! - [`Election`] makes one process the leader and tells all others who it is: [`Tenure::election`].
//! - [`Once`] runs a job once per period or point of a schedule, over a whole fleet: [`Tenure::once`].
//! - [`Tenure::cached`] computes a value once for a whole fleet, however many ask for it at once.
//! - [`watch::Watch`] tells who was granted, released, lost: [`Tenure::watch`].
//! - [`Error`] tells *busy*, *store out of reach* and *lease lost* apart, and "surely not done" from "unknown".
//!
//! # What is assumed
//!
//! A lease is exclusive as long as the holder's clock and the store's run at the same rate to within 1 % of the
//! ttl and 2 ms; nothing is assumed of what they show. The deadline counts from before the request that earned
//! it, on a clock that runs on while the machine sleeps. Beyond that, check the token at the resource.
//! [`Tenure::guarantees`] says what each store adds.
//!
//! # Features
//!
//! | feature | brings | by default |
//! |---|---|---|
//! | `redis`, `redlock`, `sqlite` | these stores | on |
//! | `etcd`, `postgres`, `zookeeper` | these stores | off |
//! | `cron` | `Once::cron`: schedules as cron writes them | off |
//! | `http` | a service (`tenure serve`) as a store | off |
//! | `tls` | TLS, for every store that has a server; without it a URL that asks for TLS is refused | on |
//! | `fence-http`, `fence-postgres`, `fence-redis`, `fence-sqlite` | [`fence`]s for resources there | off |
//! | `full` | every store and every fence, with TLS | off |
//! | `testing` | `tenure::testing`: a clock that tests drive | off |
//!
//! `memory:` is always there.
//!
//! # Writing a store
//!
//! [`backend::Backend`] is the contract; the `# Behaviour` lists of its methods are the conformance suite.
//! [`machine`] is the rule every store follows, as a pure state machine.

pub mod backend;
pub mod backends;
pub mod blocking;
pub mod clock;
mod connect;
pub mod deadlocks;
mod doctor;
mod engine;
mod error;
pub mod explain;
pub mod fence;
mod hash;
pub mod lease;
pub mod machine;
mod memo;
mod name;
#[doc(hidden)]
pub mod observe;
mod outcome;
mod owner;
mod recipes;
mod redact;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod scene;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
pub mod watch;

/// The code in the documents compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/backends/http.md")]
#[doc = include_str!("../../../docs/backends/postgres.md")]
#[doc = include_str!("../../../docs/backends/sqlite.md")]
#[doc = include_str!("../../../docs/fencing.md")]
#[doc = include_str!("../../../docs/recipes.md")]
#[doc = include_str!("../../../docs/watching.md")]
struct Documents;

#[doc(inline)]
pub use backend::{Guarantees, Replicas};
pub use connect::{default_path, examine};
#[doc(inline)]
pub use deadlocks::Deadlock;
pub use doctor::{Checkup, Finding, Fix, Severity};
pub use engine::{Guard, Lease, Lock, Session, TTL_DEFAULT, TTL_MAX, TTL_MIN, Tenure, TenureBuilder, WaitStrategy};
pub use error::{Certainty, Error, ErrorKind, Holder, Loss, Result, Step};
#[doc(inline)]
pub use machine::{NameView, Shape};
pub use memo::{MEMO_BYTES_MAX, Memo, MemoKind, MemosSurvive};
pub use name::{NAME_BYTES_MAX, Name};
pub use observe::{Ended, Recent};
pub use owner::{ClaimId, OWNER_CHARS_MAX, Owner};
pub use recipes::{
    Attempt, Begun, CachedError, Election, Leader, Leaders, Leadership, Missed, MultiGuard, MultiLock, Once,
    OnceOutcome, OnceRun, RwLock, Skipped, Striped, WhySkipped,
};
pub use redact::redacted;
pub use token::Token;
pub use watch::Watch;
