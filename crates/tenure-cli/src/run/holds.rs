//! All that a command runs under: one lock, or several that are held together or not at all.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tenure::Attempt;
use tenure::clock::Moment;

use super::hold::{Given, Hold};

/// The locks of a run, in byte order of their names.
pub(crate) struct Holds(Vec<Hold>);

impl Holds {
    pub(super) fn of(holds: Vec<Hold>) -> Self {
        Self(holds)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.0.iter()
    }

    /// The one lock, if it is one.
    pub(super) fn single(&self) -> Option<&Hold> {
        if let [hold] = self.0.as_slice() { Some(hold) } else { None }
    }

    /// The slot that is being run, if it is one.
    pub(super) fn attempt(&self) -> Option<&Attempt> {
        match self.single() {
            Some(Hold::Slot(attempt)) => Some(attempt),
            _ => None,
        }
    }

    /// Until when all can be trusted; the zero moment once one is lost.
    pub(super) fn deadline(&self) -> Moment {
        self.0.iter().map(Hold::deadline).min().unwrap_or_default()
    }

    pub(super) fn remaining(&self) -> Duration {
        self.0.iter().map(Hold::remaining).min().unwrap_or_default()
    }

    /// Why the last renewal of one failed, as it is told behind a loss; empty if none did.
    pub(super) fn last_failure(&self) -> String {
        let mut failures = self.0.iter().map(Hold::last_failure);
        failures.find(|failure| !failure.is_empty()).unwrap_or_default()
    }

    /// Resolves when the first is lost, with the reason in words.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call resolves at once.
    pub(super) async fn lost(&self) -> String {
        let mut losses: Vec<Pin<Box<dyn Future<Output = String> + '_>>> =
            self.0.iter().map(|hold| -> Pin<Box<dyn Future<Output = String>>> { Box::pin(hold.lost()) }).collect();
        poll_fn(|cx| {
            for (hold, loss) in self.0.iter().zip(&mut losses) {
                if let Poll::Ready(loss) = loss.as_mut().poll(cx) {
                    return Poll::Ready(self.told_of(hold, loss));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Gives all back, in the reverse order, and tells the worst of how that went.
    pub(super) async fn release(mut self) -> Given {
        let several = self.0.len() > 1;
        let mut worst = Given::Back;
        while let Some(hold) = self.0.pop() {
            let name = hold.name().clone();
            let told = |text: String| if several { format!("{name}: {text}") } else { text };
            worst = match (worst, hold.release().await) {
                (Given::Lost(loss), _) => Given::Lost(loss),
                (_, Given::Lost(loss)) => Given::Lost(told(loss)),
                (Given::Unknown(why), _) => Given::Unknown(why),
                (Given::Back, Given::Unknown(why)) => Given::Unknown(told(why)),
                (Given::Back, Given::Back) => Given::Back,
            };
        }
        worst
    }

    fn told_of(&self, hold: &Hold, text: String) -> String {
        if self.single().is_some() { text } else { format!("{}: {text}", hold.name()) }
    }
}
