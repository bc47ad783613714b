//! What every tenure backend is tested with: a clock that tests drive, a wrapper that loses replies, and
//! the conformance suite.
//!
//! The suite is the `# Behaviour` lists of [`tenure::backend::Backend`], word for word: each bullet is one
//! `async fn` in [`conformance`](mod@conformance). A backend takes part with one line:
//!
//! ```ignore
//! tenure_testkit::conformance!(memory, memory_store);
//! ```
//!
//! where `memory_store` is an `async fn() -> Store`; a server that is missing is a failure. That expands to one
//! named test for each case, `memory::a_free_name_is_granted_at_once`, and the same case over [`Unreliable`],
//! `memory::unreliable::a_free_name_is_granted_at_once`.
//!
//! Beside it there is one scenario of the engine over every store, [`Waiters`], with a line of its own
//! (`tenure_testkit::waiters!(memory, …)`).

// This is test code: a broken expectation is a failed test, and says so best where it broke.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod client;
pub mod conformance;
mod elsewhere;
mod fixture;
mod run;
pub mod servers;
mod unreliable;
mod waiters;

pub use cases::{CASES, Case};
pub use client::Client;
pub use fixture::{Fixture, Store, plain_request};
pub use run::{SEEDS_PER_CASE, run, run_unreliable, run_waiters};
pub use tenure::testing::ManualClock;
pub use unreliable::{Faults, Unreliable};
pub use waiters::Waiters;
