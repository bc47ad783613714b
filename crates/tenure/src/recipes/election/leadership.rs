//! A term of office.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::card::Leader;
use crate::clock::Moment;
use crate::engine::{Guard, Tenure};
use crate::error::{Loss, Result};
use crate::token::Token;

/// The longest grace there is by default.
const GRACE_DEFAULT_MAX: Duration = Duration::from_secs(5);

/// A leadership. Dropping it resigns; [`resign`](Self::resign) also tells how that went.
///
/// It is a lease: [`lost`](Self::lost) resolves before anybody else can lead, and [`protect`](Self::protect) drops
/// the work then. Work that blocks its thread cannot be dropped, nor can anything in a process that is paused: send the
/// [`term`](Self::term) with every order, and refuse orders of an earlier one ([`fence`](crate::fence)).
#[derive(Debug)]
#[must_use = "dropping a leadership resigns at once"]
#[clippy::has_significant_drop]
pub struct Leadership {
    tenure: Tenure,
    guard: Guard,
    leader: Leader,
    grace: Duration,
}

/// How the work of a leader ended.
enum Led<T> {
    Done(T),
    /// The lease was not renewed in time: it is about to end.
    Overdue,
}

impl Leadership {
    pub(super) fn new(tenure: Tenure, guard: Guard, leader: Leader, grace: Option<Duration>) -> Self {
        let ttl = guard.ttl();
        let grace = grace.unwrap_or_else(|| (ttl / 5).min(GRACE_DEFAULT_MAX)).min(ttl / 3);
        Self { tenure, guard, leader, grace }
    }

    /// The term: the fencing token. It rises from leader to leader.
    pub fn term(&self) -> Token {
        self.leader.term
    }

    /// The card that observers see.
    pub fn card(&self) -> &Leader {
        &self.leader
    }

    /// Whether it leads: compares clocks, no I/O.
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// How long it surely leads from now on if no renewal succeeds; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// The lease itself.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The lease itself, which goes on leading.
    pub fn into_guard(self) -> Guard {
        self.guard
    }

    /// Resolves when the leadership is lost, with the reason: before anybody else can lead.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call resolves at once if it was lost meanwhile.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// Runs `work` while leading and drops it the moment the leadership is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), as [`Guard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops `work` where it stands; it still leads.
    pub async fn protect<W: Future>(&self, work: W) -> Result<W::Output> {
        self.guard.protect(work).await
    }

    /// Runs `work` while leading. Should the lease not be renewed until a [grace](super::Election::grace) before its
    /// deadline, drops the work and runs `step_down` for what is left of it: to close what is open, say. That is cut
    /// off at the deadline, at its next await, finished or not. After a break there is nothing left, and it is not run.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let tenure = tenure::Tenure::connect("memory:").await?;
    /// let lead = tenure.election("billing").campaign().await?;
    /// let sum = lead.protect_then(async { 1 + 1 }, async { println!("closing the books") }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the leadership was lost or stepped down from. In the second
    /// case the lease may still live for a moment: resign, or drop it.
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops `work` or `step_down` where it stands; it still leads.
    pub async fn protect_then<W: Future>(&self, work: W, step_down: impl Future<Output = ()>) -> Result<W::Output> {
        let led = async {
            let mut overdue = pin!(self.overdue());
            let mut work = pin!(work);
            poll_fn(|cx| {
                if overdue.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Led::Overdue);
                }
                work.as_mut().poll(cx).map(Led::Done)
            })
            .await
        };
        match self.guard.protect(led).await? {
            Led::Done(output) => Ok(output),
            Led::Overdue => {
                self.guard.protect(step_down).await?;
                Err(self.guard.lost_by(Loss::Expired))
            }
        }
    }

    /// Resolves a grace before the deadline, or once there is none.
    async fn overdue(&self) {
        let clock = self.tenure.clock();
        loop {
            let at = self.guard.deadline() - self.grace;
            if at <= clock.now() || at == Moment(0) {
                return;
            }
            self.tenure.pause_until(at).await;
        }
    }

    /// Resigns, and waits for the store's answer: the next can lead at once.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once called, it resigns in the background if this future is dropped.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }
}
