//! tenure measured against its limits and against other lock libraries, in one run on one machine.
//!
//! `tenure-bench run` asks the [questions], writes raw data line by line, and makes the [report] from them. Whoever
//! takes part is a program that does as `bench/README.md` says; tenure is one of them (`tenure-bench contestant`).

pub mod bench;
pub mod child;
pub mod contest;
pub mod contestant;
pub mod data;
pub mod limit;
pub mod machine;
pub mod over_http;
pub mod own;
pub mod plan;
pub mod questions;
pub mod raw;
pub mod report;
pub mod server;
pub mod stats;
pub mod stores;
pub mod updates;
