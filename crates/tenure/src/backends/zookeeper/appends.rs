//! Bounds how many claims of one client on one name are on their way to the servers; the rest wait here, in order.
//!
//! A session has one connection, and a server answers it in order. Without a bound, thousands of new waiters on one
//! name would stand before every release and renewal of the client, also on other names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::name::Name;

/// Enough to keep the servers busy, and answered within a few milliseconds.
const UNDER_WAY_MAX: usize = 64;

/// The names that claims are being made on.
#[derive(Debug, Default)]
pub(super) struct Appends {
    names: Mutex<HashMap<Name, Turns>>,
}

#[derive(Debug)]
struct Turns {
    free: Arc<Semaphore>,
    /// How many have a turn or wait for one.
    users: usize,
}

/// The right to make a claim on a name.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    appends: &'a Appends,
    name: Name,
    permit: Option<OwnedSemaphorePermit>,
}

impl Appends {
    fn names(&self) -> MutexGuard<'_, HashMap<Name, Turns>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn, behind those who asked before.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses the place in this queue. Nothing was sent.
    pub(super) async fn turn(&self, name: &Name) -> Turn<'_> {
        let free = {
            let mut names = self.names();
            let new = || Turns { free: Arc::new(Semaphore::new(UNDER_WAY_MAX)), users: 0 };
            let turns = names.entry(name.clone()).or_insert_with(new);
            turns.users += 1;
            turns.free.clone()
        };
        let mut turn = Turn { appends: self, name: name.clone(), permit: None };
        // Nobody closes it.
        turn.permit = free.acquire_owned().await.ok();
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut names = self.appends.names();
        if let Some(turns) = names.get_mut(&self.name) {
            turns.users = turns.users.saturating_sub(1);
            if turns.users == 0 {
                names.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_rest_wait_in_order_and_other_names_do_not() {
        let appends = Appends::default();
        let (one, other) = (Name::new("one").unwrap(), Name::new("other").unwrap());
        let mut cx = Context::from_waker(Waker::noop());
        let mut asked: Vec<_> = (0..UNDER_WAY_MAX + 3).map(|_| Box::pin(appends.turn(&one))).collect();
        let mut turns: Vec<_> = asked.iter_mut().map(|asked| asked.as_mut().poll(&mut cx)).collect();
        assert!(turns[..UNDER_WAY_MAX].iter().all(Poll::is_ready));
        assert!(turns[UNDER_WAY_MAX..].iter().all(Poll::is_pending));
        assert!(Box::pin(appends.turn(&other)).as_mut().poll(&mut cx).is_ready(), "another name has turns of its own");
        // One that leaves loses its place, and the next is who came next.
        let mut rest = asked.split_off(UNDER_WAY_MAX);
        drop(rest.remove(0));
        drop(turns.remove(7));
        assert!(rest[1].as_mut().poll(&mut cx).is_pending());
        assert!(rest[0].as_mut().poll(&mut cx).is_ready());
        drop((asked, rest, turns));
        assert!(appends.names().is_empty(), "nothing is kept of names that nobody uses");
    }
}
