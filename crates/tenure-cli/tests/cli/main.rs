//! The real binary against a real embedded store: one behaviour per test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod claim;
mod crash;
mod disk;
mod look;
mod loss;
mod pty;
mod run;
mod signals;
mod support;
mod usage;
