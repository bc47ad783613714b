//! One request for a claim, on its way to an answer.
//!
//! The task that asked polls it. If that task does nothing for too long, somebody else looks after the request, and
//! leaves the answer here should the task ever look.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::live::LiveClaim;
use crate::backend::{Answer, Call, Claimed};
use crate::error::Result;

/// What a store answers to a claim.
pub(crate) type Asked = Result<Answer<Claimed>>;

pub(crate) struct Request {
    pub(crate) claim: Arc<LiveClaim>,
    /// Whether somebody else has looked after it.
    attended: AtomicBool,
    /// Held while the call is polled: nothing is locked by whoever holds it that locks it in turn.
    state: Mutex<State>,
}

enum State {
    /// Polled by the task that asked.
    UnderWay(Call<Answer<Claimed>>),
    /// Looked after by somebody else, who wakes the task that asked.
    Attended(Waker),
    /// Answered to somebody else.
    Answered(Asked),
    /// The answer was taken, or is no longer wanted.
    Over,
}

impl Request {
    pub(crate) fn new(claim: Arc<LiveClaim>, call: Call<Answer<Claimed>>) -> Arc<Self> {
        Arc::new(Self { claim, attended: AtomicBool::new(false), state: Mutex::new(State::UnderWay(call)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        super::unpoisoned(self.state.lock())
    }

    /// For the task that asked: the answer, or `None` if it was taken before.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Asked>> {
        let mut state = self.state();
        // Taken out while it is polled: should that panic, it is not polled again.
        match std::mem::replace(&mut *state, State::Over) {
            State::UnderWay(mut call) => match call.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => {
                    *state = State::UnderWay(call);
                    Poll::Pending
                }
            },
            State::Attended(_) => {
                *state = State::Attended(cx.waker().clone());
                Poll::Pending
            }
            State::Answered(answer) => Poll::Ready(Some(answer)),
            State::Over => Poll::Ready(None),
        }
    }

    /// The task that asked waits no longer. The answer, if somebody else has it already.
    pub(crate) fn give_up(&self) -> Option<Asked> {
        match std::mem::replace(&mut *self.state(), State::Over) {
            State::Answered(answer) => Some(answer),
            State::UnderWay(_) | State::Attended(_) | State::Over => None,
        }
    }

    /// Takes the call from the task that asked, which is told by `asker` when there is an answer.
    pub(crate) fn attend(&self, asker: Waker) -> Option<Call<Answer<Claimed>>> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Over) {
            State::UnderWay(call) => {
                self.attended.store(true, Ordering::Release);
                *state = State::Attended(asker);
                Some(call)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Whether somebody else has looked after it.
    pub(crate) fn was_attended(&self) -> bool {
        self.attended.load(Ordering::Acquire)
    }

    /// Whether the task that asked still wants the answer of a call that was taken.
    pub(crate) fn is_awaited(&self) -> bool {
        matches!(*self.state(), State::Attended(_))
    }

    /// What became of a call that was taken.
    pub(crate) fn answered(&self, answer: Asked) {
        let mut state = self.state();
        if let State::Attended(asker) = std::mem::replace(&mut *state, State::Over) {
            *state = State::Answered(answer);
            drop(state);
            asker.wake();
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("claim", &self.claim).finish_non_exhaustive()
    }
}
