//! Memos, as a guard writes and a client reads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use super::client::Tenure;
use super::core::{Core, ERRAND_PAUSE, RELEASE_TIMEOUT};
use super::guard::Guard;
use crate::backend::{MemoKind, MemoWrite, MemoWritten};
use crate::error::{Certainty, Error, ErrorKind, Loss, Result, Step};
use crate::lease;
use crate::machine::Shape;
use crate::memo::{MEMO_BYTES_MAX, Memo};
use crate::observe::Operation;

/// How often a write is tried anew because the memo has another version than expected. Nobody but the holder writes, so
/// one try tells the version and the next writes.
const VERSIONS_MAX: usize = 8;

/// What a guard knows of the memo it writes.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// The version of the memo, as far as it is known. Locked while a write is under way: writes of one guard follow
    /// each other.
    version: Mutex<u64>,
    /// Whether a request was sent that was not answered: it may still take effect. This stays so whatever is answered
    /// later: a request over no memo fits again once the memo that was there has ended.
    unanswered: AtomicBool,
}

impl Writing {
    /// Whether a write may still take effect.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Acquire)
    }
}

impl Guard {
    /// Writes the memo of the name, and answers its version. The store checks in the step that writes it that this
    /// guard's claim holds the name: a holder that was paused past its deadline writes nothing. Writes of one guard
    /// take effect in the order they were made. The memo stays when the lock is released, and anyone reads it
    /// ([`Tenure::memo`]).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let guard = tenure.lock("import").acquire().await?;
    /// guard.write_memo("rows 1 to 500 are done").await?;
    /// guard.release().await?;
    ///
    /// let memo = tenure.memo("import").await?.expect("it was written");
    /// assert_eq!(&*memo.bytes, b"rows 1 to 500 are done");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the lease is lost. [`ErrorKind::Invalid`] if the lock is not exclusive, the
    /// store keeps no memos, or there are more than 64 KiB. [`ErrorKind::Conflict`] if a recipe keeps a memo of its own
    /// there. [`ErrorKind::Replicas`] if too few replicas have it ([`Lock::min_replicas`](crate::Lock::min_replicas)).
    /// Store errors. [`Error::certainty`] says of each whether the memo may have been written.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the memo may be written until the lease ends, but not over a later
    /// write of this guard that is still there.
    pub async fn write_memo(&self, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.write_memo_as(MemoKind::User, bytes.as_ref(), None).await
    }

    /// As [`write_memo`](Self::write_memo); the memo ends after `keep`, by the store's wall clock.
    ///
    /// # Errors
    ///
    /// As [`write_memo`](Self::write_memo).
    ///
    /// # Cancel safety
    ///
    /// As [`write_memo`](Self::write_memo).
    pub async fn write_memo_for(&self, bytes: impl AsRef<[u8]>, keep: Duration) -> Result<u64> {
        self.write_memo_as(MemoKind::User, bytes.as_ref(), Some(keep)).await
    }

    /// Writes a memo of any kind.
    ///
    /// # Cancel safety
    ///
    /// As [`write_memo`](Self::write_memo).
    pub(crate) async fn write_memo_as(&self, kind: MemoKind, bytes: &[u8], keep: Option<Duration>) -> Result<u64> {
        self.check_memo(bytes)?;
        let writing = self.writing();
        let mut version = writing.version.lock().await;
        let mut write = MemoWrite {
            id: self.claim.id,
            owner: self.claim.owner.clone(),
            number: self.claim.number(),
            token: self.token,
            after: *version,
            write: rand::random(),
            kind,
            keep,
            bytes: bytes.into(),
        };
        let was_unanswered = writing.unanswered.swap(true, Ordering::AcqRel);
        // Whether a try that was not answered may have been applied.
        let mut unknown = false;
        for _ in 0..VERSIONS_MAX {
            let answer = self.send_memo(&write, &mut unknown).await;
            writing.unanswered.store(was_unanswered || unknown, Ordering::Release);
            match answer {
                Ok(MemoWritten::Done { version: written }) => {
                    *version = written;
                    return self.confirm_memo(MemoWrite { after: written, ..write }).await;
                }
                Ok(MemoWritten::Changed(present)) => {
                    *version = present.map_or(0, |memo| memo.version);
                    write.after = *version;
                }
                Ok(MemoWritten::OtherKind(other)) => {
                    let message = format!("a memo of the kind {other} is kept with this name: use another name");
                    return Err(self.memo_error(Error::new(ErrorKind::Conflict, message).unknown_if(unknown)));
                }
                Ok(MemoWritten::NotHolder) => {
                    // The renewal is told why: broken, by whom. Whatever it says, the claim is not to be trusted.
                    drop(self.renew().await);
                    self.core.lose(&self.claim, Loss::Gone);
                    let lost = self.lost_by(self.claim.loss().unwrap_or(Loss::Gone));
                    return Err(lost.at(Step::Memo).unknown_if(unknown));
                }
                Err(error) => return Err(self.memo_error(error.unknown_if(unknown))),
            }
        }
        let message = "the memo is changed by somebody else all the time";
        let changed = Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied);
        Err(self.memo_error(changed.unknown_if(unknown)))
    }

    fn check_memo(&self, bytes: &[u8]) -> Result<()> {
        let refused = |message: String| Err(self.memo_error(Error::new(ErrorKind::Invalid, message)));
        if !self.core.backend.capabilities().memos {
            return refused("this store keeps no memos".to_owned());
        }
        if self.shape() != Shape::Exclusive {
            return refused(format!(
                "a lock that is held {} writes no memo: only the exclusive holder does",
                self.shape()
            ));
        }
        if bytes.len() > MEMO_BYTES_MAX {
            return refused(format!("a memo has at most {MEMO_BYTES_MAX} bytes, this one {}", bytes.len()));
        }
        if self.core.clock.now() >= lease::lost_at(self.claim.deadline()) {
            self.core.lose(&self.claim, Loss::Expired);
        }
        self.claim.loss().map_or(Ok(()), |loss| Err(self.lost_by(loss).at(Step::Memo)))
    }

    /// Sends one write, again and again until it is answered or the lease is lost. `unknown` is set if a try was not
    /// answered that may have been applied.
    async fn send_memo(&self, write: &MemoWrite, unknown: &mut bool) -> Result<MemoWritten> {
        let core: &Arc<Core> = &self.core;
        loop {
            let trip = core.observer.metrics.sent(Operation::Memo, core.clock.now());
            let call = core.backend.write_memo(self.name(), write.clone());
            let limit = || Some(lease::about(self.claim.deadline().min(core.clock.now() + RELEASE_TIMEOUT)));
            let answer = core.within(limit, call).await.unwrap_or_else(|| Err(core.no_answer()));
            let failure = match answer {
                Ok(written) => {
                    core.observer.metrics.answered(trip, &*core.clock);
                    return Ok(written);
                }
                Err(failure) => failure,
            };
            *unknown |= failure.certainty() == Certainty::Unknown;
            let is_late = core.clock.now() + ERRAND_PAUSE >= lease::lost_at(self.claim.deadline());
            if is_late || core.is_over() || !failure.is_retryable() || self.claim.loss().is_some() {
                return Err(failure);
            }
            core.alarm(core.clock.now() + ERRAND_PAUSE).await;
        }
    }

    /// Waits for as many replicas as the lock asks for. A renewal would not do: after a failover the master may have
    /// the claim without the memo.
    async fn confirm_memo(&self, written: MemoWrite) -> Result<u64> {
        let version = written.after;
        let Some(replicas) = self.claim.plan.replicas else { return Ok(version) };
        let call = self.core.backend.confirm_memo(self.name(), written, replicas);
        let answer = self.core.within(|| Some(self.claim.deadline()), call).await;
        let unknown = |error: Error| self.memo_error(error.with_certainty(Certainty::Unknown));
        let confirmed = answer.unwrap_or_else(|| Err(self.core.no_answer())).map_err(unknown)?;
        if confirmed.is_enough() {
            return Ok(version);
        }
        let message = format!(
            "the memo is written, but only {} replicas have it, not {}",
            confirmed.acknowledged, confirmed.needed
        );
        Err(unknown(Error::new(ErrorKind::Replicas, message)))
    }

    fn memo_error(&self, error: Error) -> Error {
        error.at(Step::Memo).about(self.name()).in_store(self.core.backend.url())
    }
}

impl Tenure {
    /// The memo of a name: what its last exclusive holder wrote ([`Guard::write_memo`]), or `None`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a bad name, and where the store keeps no memos
    /// ([`Capabilities::memos`](crate::backend::Capabilities)); store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn memo(&self, name: impl AsRef<str>) -> Result<Option<Memo>> {
        let name = self.core.name(name.as_ref())?;
        if !self.capabilities().memos {
            let error = Error::new(ErrorKind::Invalid, "this store keeps no memos");
            return Err(error.at(Step::Memo).about(&name).in_store(self.url()));
        }
        self.answer(Step::Memo, self.core.backend.memo(&name)).await
    }
}
