//! One leader at a time, known to everybody.

mod card;
mod leadership;
mod observe;

use std::time::Duration;

use tracing::debug;

use crate::backend::Replicas;
use crate::engine::{Guard, Lock, Tenure};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::memo::MemoKind;
use crate::owner::Owner;

pub use card::Leader;
pub use leadership::Leadership;
pub use observe::Leaders;

use card::Card;

/// The longest address of a leader, in bytes.
const ADDRESS_BYTES_MAX: usize = 1024;

/// How often a campaign may have the lock and fail to leave its card, and the pause before the next try.
const CARDS_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_millis(200);

/// An election: one leader at a time, whom everybody can find. Made by [`Tenure::election`].
///
/// A leadership is a lease like any other; its fencing token is the [term](Leadership::term). The leader leaves its
/// card with the name (label, address, since when), and [`observe`](Self::observe) tells who leads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let election = tenure.election("billing").address("10.0.0.7:8080");
/// let mut leaders = election.observe();
///
/// let lead = election.campaign().await?; // waits its turn
/// let leader = leaders.next().await?;
/// assert_eq!((leader.term, leader.address.as_deref()), (lead.term(), Some("10.0.0.7:8080")));
/// lead.protect(async { /* lead */ }).await?; // ends with the lease
/// lead.resign().await?; // or drop it
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nobody is elected before `campaign` is awaited"]
pub struct Election {
    tenure: Tenure,
    name: String,
    lock: Lock,
    address: Option<String>,
    grace: Option<Duration>,
}

impl Tenure {
    /// An election of a leader under this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        let name = name.as_ref().to_owned();
        // Each leader has a claim of its own: its term is the token that everybody sees.
        let lock = self.lock(&name).strict_fifo();
        Election { tenure: self.clone(), name, lock, address: None, grace: None }
    }
}

impl Election {
    /// How long nobody can lead after a leader that died: as [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// What people see of the leader, instead of the client's label.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// Where the leader is reached, for whoever observes: at most 1 KiB.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// How long before its deadline a leader that cannot renew steps down ([`Leadership::protect_then`]). A fifth of
    /// the ttl by default, 5 s at most; never more than a third of it.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Leads only while so many replicas know it: as [`Lock::min_replicas`].
    pub fn min_replicas(mut self, replicas: impl Into<Replicas>) -> Self {
        self.lock = self.lock.min_replicas(replicas);
        self
    }

    /// The owners this process runs within: as [`Lock::within`].
    pub fn within(mut self, owners: impl IntoIterator<Item = Owner>) -> Self {
        self.lock = self.lock.within(owners);
        self
    }

    /// Waits until it leads, for ever, and leaves its card.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`]; [`ErrorKind::Invalid`] where the store keeps no memos; [`ErrorKind::Conflict`] if a memo
    /// of another kind is kept with the name.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses the place in the queue. The claim is ended in the background, or by its ttl.
    pub async fn campaign(&self) -> Result<Leadership> {
        self.check()?;
        let mut failures = 0;
        loop {
            let guard = self.lock.acquire().await?;
            let error = match self.leave_card(&guard).await {
                Ok(leader) => return Ok(Leadership::new(self.tenure.clone(), guard, leader, self.grace)),
                Err(error) => error,
            };
            drop(guard);
            // Nobody has acted on it: it stands for election again. A loss may come any number of times; a store that
            // lets it have the lock and not leave its card is not asked for ever.
            failures += u32::from(error.kind() != ErrorKind::Lost);
            if failures == CARDS_MAX || error.kind() != ErrorKind::Lost && !error.is_retryable() {
                return Err(error);
            }
            debug!(%error, "a leadership ended before it began");
            self.tenure.pause_until(self.tenure.clock().now() + PAUSE).await;
        }
    }

    /// Who leads now; `None` if nobody does, or its card is not there yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a bad name and where the store keeps no memos; store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.check()?;
        card::present(&self.tenure, &self.name).await
    }

    /// Who leads, from now on: terms that rise. Nothing is asked before the first [`Leaders::next`].
    pub fn observe(&self) -> Leaders {
        Leaders::new(self.clone())
    }

    async fn leave_card(&self, guard: &Guard) -> Result<Leader> {
        // Only shown: a store that does not tell the time is no reason not to lead.
        let ours = || card::at(self.tenure.clock().wall_micros());
        let since =
            if self.tenure.capabilities().time { self.tenure.time().await.unwrap_or_else(|_| ours()) } else { ours() };
        let card = Card::new(self.lock.shown_label(), self.address.as_deref(), since);
        guard.write_memo_as(MemoKind::Election, &card.to_bytes(), None).await?;
        Ok(card.of_term(guard.term()))
    }

    /// Refuses what can never work.
    fn check(&self) -> Result<()> {
        let store = self.tenure.capabilities();
        let problem = match &self.address {
            _ if !store.memos || !store.tokens => {
                "this store keeps no memos, so nobody could tell who leads: use another store for elections".to_owned()
            }
            Some(address) if address.len() > ADDRESS_BYTES_MAX => {
                format!("an address has at most {ADDRESS_BYTES_MAX} bytes, this one {}", address.len())
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Invalid, problem).at(Step::Acquire).in_store(self.tenure.url()))
    }
}
