//! Shapes of use made from locks.

mod multi;
mod rwlock;
mod striped;

pub use multi::{MultiGuard, MultiLock};
pub use rwlock::RwLock;
pub use striped::Striped;
