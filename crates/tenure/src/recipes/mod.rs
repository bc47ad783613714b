//! Shapes of use made from locks.

mod cached;
mod election;
mod multi;
mod once;
mod rwlock;
mod several;
mod striped;

pub use cached::CachedError;
pub(crate) use cached::LocalCache;
pub use election::{Election, Leader, Leaders, Leadership};
pub(crate) use multi::first_lost;
pub use multi::{MultiGuard, MultiLock};
pub use once::{Attempt, Begun, Missed, Once, OnceOutcome, OnceRun, Skipped, WhySkipped};
pub use rwlock::RwLock;
pub(crate) use several::in_order;
pub use striped::Striped;
