//! Watching names: what changed from one look to the next.
//!
//! A [`Watch`] looks at all names with a prefix again and again, and tells how the claims of one look differ from those
//! of the one before (`compare`, a pure function). That works on every store with what every store
//! has, and with no more rights than `tenure show` needs; what came and went between two looks is not seen.

mod change;
mod compare;
mod looking;

pub use change::{Change, ChangeKind};
pub use looking::{INTERVAL_DEFAULT, INTERVAL_MIN, NAMES_MAX, Watch};
