//! The two looks, and what ends a deadlock.

use futures_util::future::join_all;

use super::{Deadlock, NOTE, Stuck};
use crate::engine::Tenure;
use crate::error::{Error, ErrorKind, Result, Step};

/// How many names of the second look are asked for at a time.
const TOGETHER: usize = 16;

impl Tenure {
    /// Looks for owners that wait for each other: at all names of the store that somebody waits for, twice. Empty if
    /// there are none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// for deadlock in tenure.deadlocks().await? {
    ///     println!("{deadlock}"); // web-1:12 waits for b, held by web-2:7; web-2:7 waits for a, held by web-1:12
    ///     tenure.break_deadlock(&deadlock).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] where claims do not wait in the store (Redlock, other libraries' layouts); store
    /// errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        if !self.capabilities().queue {
            let message = "claims do not wait in this store, so deadlocks are not seen there";
            return Err(Error::new(ErrorKind::Conflict, message).at(Step::Inspect).in_store(self.url()));
        }
        let (mut views, mut after) = (Vec::new(), None);
        loop {
            let page = self.waited_for(after).await?;
            views.extend(page.views);
            after = page.after;
            if after.is_none() {
                break;
            }
        }
        let stuck = Stuck::of(&views);
        drop(views);
        let mut again = Vec::with_capacity(stuck.names().len());
        for names in stuck.names().chunks(TOGETHER) {
            let looks: Vec<_> = names.iter().map(|name| self.inspect_exact(name)).collect();
            for view in join_all(looks).await {
                again.push(view?);
            }
        }
        Ok(stuck.confirmed_by(again))
    }

    /// Ends a deadlock: the claim of it that came last is ended if it still waits, and its acquire fails
    /// ([`ErrorKind::Deadlock`]). False if it no longer waits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] where the store ends no claims of others that wait (through a service); store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: look again.
    pub async fn break_deadlock(&self, deadlock: &Deadlock) -> Result<bool> {
        let Some(victim) = deadlock.youngest() else { return Ok(false) };
        self.break_waiter(&victim.name, (victim.claim, victim.number), &format!("{NOTE}{deadlock}")).await
    }
}
