//! Who gets a lock after its holder: when it has it, on the clock of all processes.

use crate::locker::{BoxError, Locker};
use crate::order::{One, TakeResult};
use crate::time::epoch_micros;

/// Acquires, calls `got` with the moment, and releases.
///
/// # Errors
///
/// The library's.
///
/// # Cancel safety
///
/// Cancelling drops what is held.
pub async fn run<L: Locker>(locker: &L, order: &One, got: impl FnOnce(TakeResult)) -> Result<(), BoxError> {
    let held = locker.acquire(&order.name).await?;
    got(TakeResult { got_us: epoch_micros() });
    locker.release(held).await
}
