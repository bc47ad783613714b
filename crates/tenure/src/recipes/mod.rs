//! Shapes of use made from locks.

mod rwlock;

pub use rwlock::RwLock;
