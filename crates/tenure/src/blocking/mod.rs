//! All of tenure without async.
//!
//! ```
//! use tenure::blocking::Tenure;
//!
//! # fn main() -> Result<(), tenure::Error> {
//! let tenure = Tenure::connect("memory:")?; // or sqlite:PATH, redis://HOST, ...
//! let guard = tenure.lock("orders/42").acquire()?; // waits its turn
//! let receipt = guard.protect(|| "shipped")?; // an error if the lease was lost meanwhile
//! println!("{receipt} under token {:?}", guard.token());
//! guard.release()?; // or drop it
//! # Ok(()) }
//! ```
//!
//! Types and methods have the names of the async ones, and what is said there holds here. What differs:
//!
//! - A client has a thread of its own, which renews its leases and talks to the store. All that comes from the client
//!   shares it, and it ends when the last of these values is dropped.
//! - [`Guard::lost`] waits for a loss and [`Guard::lost_within`] does so for a while. Work cannot be stopped from
//!   outside: it asks [`Guard::check`] between its steps, and [`Guard::protect`] asks when it has ended.
//! - A [`Watch`] is an iterator.
//! - [`Election`](crate::Election) and [`Once`](crate::Once) are async only so far.
//!
//! # Inside a runtime
//!
//! A call that waits would hold up all other tasks of its thread. So within an async function or block it is refused
//! with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) and has done nothing. There, use
//! [`tenure::Tenure`](crate::Tenure), or wait on a thread that may block:
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::ErrorKind;
//! use tenure::blocking::Tenure;
//!
//! let refused = Tenure::connect("memory:").unwrap_err();
//! assert_eq!(refused.kind(), ErrorKind::Invalid);
//!
//! let token = tokio::task::spawn_blocking(|| {
//!     let tenure = Tenure::connect("memory:")?;
//!     Ok::<_, tenure::Error>(tenure.lock("orders/42").acquire()?.token())
//! });
//! assert!(token.await??.is_some());
//! # Ok(()) }
//! ```
//!
//! `spawn_blocking`, `block_in_place` and threads of your own may wait, also while a runtime's handle is entered there.
//! The one async place that is not noticed is a future within [`tokio::task::unconstrained`]: there a call waits, and
//! holds its thread up. Calls that do not wait ([`Guard::token`], [`Guard::is_held`] and others) are allowed
//! everywhere.
//!
//! # Dropping
//!
//! A guard can be dropped on every thread, async ones included, and after its client: the lock is released in the
//! background. Whoever drops the last value of a client waits until that is done, for at most five seconds. So what is
//! dropped at the end of `main` is released before the process ends. In async code nobody waits; to be sure there, call
//! [`Guard::release`] or [`Tenure::close`] on a thread that may block before.

mod background;
mod client;
mod guard;
mod lock;
mod multi;
mod rwlock;
mod session;
mod striped;
mod wait;
mod watch;

pub use client::{Tenure, TenureBuilder, examine};
pub use guard::Guard;
pub use lock::Lock;
pub use multi::{MultiGuard, MultiLock};
pub use rwlock::RwLock;
pub use session::Session;
pub use striped::Striped;
pub use watch::Watch;
