//! Distributed locks that say when they are lost. (tour to be written)

pub mod backend;
pub mod backends;
pub mod clock;
mod connect;
mod engine;
mod error;
pub mod fence;
pub mod machine;
mod name;
mod owner;
mod recipes;
mod token;

pub use connect::{default_path, redacted};
pub use engine::{Guard, Lease, Lock, Session, TTL_DEFAULT, TTL_MAX, TTL_MIN, Tenure, TenureBuilder, WaitStrategy};
pub use error::{Certainty, Error, ErrorKind, Holder, Loss, Result, Step};
pub use name::{NAME_BYTES_MAX, Name};
pub use owner::{ClaimId, OWNER_CHARS_MAX, Owner};
pub use recipes::RwLock;
pub use token::Token;
