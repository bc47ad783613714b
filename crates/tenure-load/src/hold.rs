//! A holder that is going to be killed.

use crate::locker::{BoxError, Locker};
use crate::order::One;

/// Acquires and calls `held`; then keeps it, for ever.
///
/// # Errors
///
/// The library's.
///
/// # Cancel safety
///
/// Cancelling drops what is held.
pub async fn run<L: Locker>(locker: &L, order: &One, held: impl FnOnce()) -> Result<(), BoxError> {
    let _guard = locker.acquire(&order.name).await?;
    held();
    std::future::pending().await
}
