//! The real binary against real stores: one behaviour per test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod claim;
mod completions;
mod crash;
mod disk;
mod doctor;
mod explain;
mod fleet_doctor;
mod look;
mod loss;
mod nested;
mod postgres;
mod pty;
mod redis;
mod redlock;
mod run;
mod signals;
mod support;
mod top;
mod usage;
mod watch;
mod within;
mod zookeeper;
