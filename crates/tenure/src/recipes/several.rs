//! Locks of several clients, taken as one.

use super::multi::MultiLock;
use crate::engine::Lock;
use crate::machine::Shape;

impl MultiLock {
    /// Locks of any clients, stores and shapes, held together or not at all: an order in one store and its payment in
    /// another, say.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// use tenure::{MultiLock, Tenure};
    ///
    /// let orders = Tenure::connect("memory:orders").await?;
    /// let payments = Tenure::connect("memory:payments").await?;
    /// let both = MultiLock::of([payments.lock("payments/42"), orders.lock("orders/42")]).acquire().await?;
    /// both.protect(async { "paid and shipped" }).await?;
    /// both.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// They are taken one after another, ordered by their stores' URLs and then by their names, whatever order they
    /// are given in. Programs that write the same URL for the same store so cannot block each other. Where URLs may
    /// differ, or two stores have the same (those in memory), bound the wait
    /// ([`acquire_within`](Self::acquire_within)). If one cannot be had, or is lost meanwhile, those that were taken
    /// are released. A name that one client locks twice is taken once, exclusively if either asks for that.
    ///
    /// This is no transaction: each store ends its own lease, at its own deadline. The
    /// [guards](super::MultiGuard::guards) have a token each, for the resource that each protects.
    pub fn of(locks: impl IntoIterator<Item = Lock>) -> Self {
        Self::taken_in(in_order(locks, |lock| lock))
    }
}

/// The locks in the order in which everybody takes them, without those that stand for another.
pub(crate) fn in_order<L>(locks: impl IntoIterator<Item = L>, lock: impl Fn(&L) -> &Lock) -> Vec<L> {
    let mut locks: Vec<L> = locks.into_iter().collect();
    // Of one name the exclusive one comes first, and stands for the others.
    let rank = |shape: Shape| u8::from(shape != Shape::Exclusive);
    locks.sort_by(|one, other| {
        let (one, other) = (lock(one), lock(other));
        one.place().cmp(&other.place()).then_with(|| rank(one.shape()).cmp(&rank(other.shape())))
    });
    locks.dedup_by(|later, earlier| lock(later).is_covered_by(lock(earlier)));
    locks
}
