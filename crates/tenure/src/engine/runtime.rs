//! The runtime that a client lives on may end before the client: then nobody renews and nothing can be asked any
//! more. Whoever waits is told, and whatever is asked for later is refused.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::core::{self, Core};
use super::registry::Kind;
use crate::error::{Certainty, Error, ErrorKind, Loss, Result};

/// Dropped with the watchdog, whose task is the client's own: when the client is gone, or its runtime ends.
pub(super) struct Alive(pub(super) Weak<Core>);

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(core) = self.0.upgrade() {
            core.end_with_runtime();
        }
    }
}

impl Core {
    /// Tells everybody. What is added from now on finds the client over by itself.
    fn end_with_runtime(self: &Arc<Self>) {
        self.over.store(true, Ordering::Release);
        let kinds = self.registry.end();
        self.cohorts.end();
        for kind in kinds {
            match kind {
                Kind::Claim(beat) => {
                    let was_granted = beat.claim.lose(Loss::SessionEnded) == Some(true);
                    if was_granted && beat.claim.is_taken() {
                        self.observer.metrics.of(&beat.claim.plan.name).lost(&Loss::SessionEnded);
                    }
                }
                Kind::Alarm(waker) | Kind::Unanswered(_, waker) => waker.wake(),
                Kind::MaxHold(..) | Kind::Warn(..) | Kind::Summons(..) => {}
            }
        }
        self.observer.metrics.tell();
    }

    /// Whether the client's runtime has ended, or is ending.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether that has ended with all its tasks: whatever sets a timer there would panic. While it is ending, a
    /// store that needs no runtime can still be told.
    pub(super) fn is_without_runtime(&self) -> bool {
        self.is_over() && self.runtime.metrics().num_alive_tasks() == 0
    }

    pub(crate) fn refuse_if_over(&self) -> Result<()> {
        if self.is_over() {
            let message = "the runtime that the client was connected on has ended";
            return Err(Error::new(ErrorKind::Closed, message).in_store(self.backend.url()));
        }
        Ok(())
    }

    /// The error of a request whose reply never came.
    pub(crate) fn no_answer(&self) -> Error {
        match self.refuse_if_over() {
            Err(over) => over.with_certainty(Certainty::Unknown),
            Ok(()) => core::no_answer(),
        }
    }
}
