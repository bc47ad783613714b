//! A lock is a queue of claims: the one rule, as a pure state machine.
//!
//! Each name has an ordered queue of claims. **The claims at the front that fit together hold the
//! lock; the others wait.** Mutexes, read-write locks and semaphores, re-entry, hand-over, expiry and
//! fairness all follow from that rule, and the rule lives here once: [`apply`] takes the state of one
//! name, an operation, the store's time and the floor of tokens, changes the state, and answers what
//! the caller is told and who was granted by it. Nothing here does I/O, reads a clock or draws a
//! random number, so that every store can run it and every test can replay it.
//!
//! The front of the queue is kept as a prefix: every granted claim stands before every waiting one.

mod apply;
mod claim;
mod claims;
mod memo;
mod op;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod ordered;
mod packed;
mod view;

pub use apply::{apply, apply_reaching};
pub use claim::{BreakMark, Claim, Grant, Queue, SKIPS_MAX, Shape};
pub use claims::Claims;
pub use memo::{MemoRecord, write_memo};
pub use op::{Applied, ClaimRequest, Granted, Op, Outcome, Place, Refusal, Standing};
pub use packed::Unreadable;
pub use view::{BreakView, HolderView, NameView, WaiterView};
