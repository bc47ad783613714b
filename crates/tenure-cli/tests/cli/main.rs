//! The real binary against real stores: one behaviour per test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod claim;
mod completions;
mod crash;
mod disk;
mod doctor;
mod fixes;
mod fleet_doctor;
mod logins;
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
mod usage;
mod within;
mod zookeeper;
