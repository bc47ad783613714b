//! Who calls, and what it may do.

mod caller;
mod file;
mod secret;

pub(crate) use caller::Caller;
pub use caller::Right;
pub use file::{Entry, Tokens};
pub use secret::Secret;
