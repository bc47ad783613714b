//! Whether the store answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::backend::Backend;
use tenure::clock::{Clock, Moment};
use tenure::{Error, ErrorKind, Result};

/// `/readyz` turns after so long without an answer: a store's hiccup must not take all instances out.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often the store is asked if nobody else asks.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// When the store was last heard.
#[derive(Debug)]
pub(crate) struct Health {
    clock: Arc<dyn Clock>,
    heard: AtomicU64,
    /// Whether it was told that the store does not answer.
    away: AtomicBool,
}

impl Health {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let heard = AtomicU64::new(clock.now().as_micros());
        Arc::new(Self { clock, heard, away: AtomicBool::new(false) })
    }

    /// The store has answered, or not. A refusal is an answer.
    pub(crate) fn heard<T>(&self, answer: &Result<T>) {
        let silent = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Quorum | ErrorKind::Closed);
        match answer.as_ref().err().filter(|error| silent(error.kind())) {
            None => {
                self.heard.store(self.clock.now().as_micros(), Ordering::Relaxed);
                if self.away.load(Ordering::Relaxed) && self.away.swap(false, Ordering::Relaxed) {
                    tracing::warn!("the store answers again");
                }
            }
            // One request that fails says little.
            Some(error) if self.silence() >= LOOK_EVERY && !self.away.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "the store does not answer");
            }
            Some(_) => {}
        }
    }

    /// How long the store has said nothing.
    pub(crate) fn silence(&self) -> Duration {
        self.clock.now().since(Moment(self.heard.load(Ordering::Relaxed)))
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.silence() < SILENCE_MAX
    }

    /// Asks the store now and then, so that its silence means something.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(crate) async fn keep_asking(self: Arc<Self>, backend: Arc<dyn Backend>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.silence() < LOOK_EVERY {
                continue;
            }
            // One name at most, and most likely none.
            let look = backend.scan("\u{10fffd}", None, 1);
            let answer = tokio::time::timeout(SILENCE_MAX, look).await;
            let silent = || Error::new(ErrorKind::Unavailable, format!("no answer for {} s", SILENCE_MAX.as_secs()));
            self.heard(&answer.unwrap_or_else(|_| Err(silent())));
        }
    }
}
