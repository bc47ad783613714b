//! Workloads for lock libraries, the same for every library: what is measured does not depend on who is measured.
//!
//! - [`pairs`]: acquire and release of names that nobody else wants
//! - [`hot`]: one name that everybody wants
//! - [`hold`] and [`take`]: a holder that is killed, and who gets the lock after it
//! - [`leases`]: what it costs to hold many
//! - `outage`: many leases that are lost together (with the feature `tenure`)
//!
//! A library takes part by a [`Locker`]: how it acquires and how it releases. A program becomes a contestant of a
//! benchmark by [`contestant::main`], which does what an [`Order`](order::Order) says and prints the result. With the
//! feature `tenure`, [`TenureLocker`] is tenure's own.

pub mod contestant;
mod crowd;
mod histogram;
pub mod hold;
pub mod hot;
pub mod leases;
mod locker;
pub mod order;
#[cfg(feature = "tenure")]
pub mod outage;
pub mod pairs;
mod process;
mod samples;
pub mod take;
#[cfg(feature = "tenure")]
mod tenure_locker;
mod time;

pub use crowd::Crowd;
pub use locker::{BoxError, Locker};
pub use process::{cpu_time, cpu_wait, resident_bytes};
pub use samples::{Samples, jain};
#[cfg(feature = "tenure")]
pub use tenure_locker::TenureLocker;
pub use time::epoch_micros;
