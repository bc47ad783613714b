//! Fencing at the resource: the code that refuses a stale holder.

mod gate;

pub use gate::{Gate, Refused};
