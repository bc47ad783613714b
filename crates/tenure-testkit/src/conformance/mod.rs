//! The cases: one `async fn` for each bullet of the [`Backend`](tenure::backend::Backend) contract.
//!
//! A case panics where a store breaks the promise. It asks only through [`Client`](crate::Client), which
//! repeats what was not answered, so that the same case runs over an unreliable network: what it asserts
//! is true whether or not a try without an answer was applied.

mod blocks;
mod breaks;
mod claims;
mod memos;
mod reentry;
mod releases;
mod renewals;
mod shapes;
mod time;
mod views;

pub use blocks::*;
pub use breaks::*;
pub use claims::*;
pub use memos::*;
pub use reentry::*;
pub use releases::*;
pub use renewals::*;
pub use shapes::*;
pub use time::*;
pub use views::*;
