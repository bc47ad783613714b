//! Instances of the lock service, and callers that behave well, badly, or not at all.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bad_input;
mod cancelled;
mod deadlines;
mod events;
mod http2;
mod late_copies;
mod limits;
mod memos;
mod proxy;
mod rights;
mod several;
mod stopping;
mod support;
mod waits;
mod wire;
