//! Redlock: N independent Redis masters, and a fencing token.

#[allow(dead_code)] // being built
mod ballot;
