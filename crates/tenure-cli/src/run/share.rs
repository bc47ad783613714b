//! A share in the enclosing run's claim, on stores where a holder cannot re-enter: it is renewed, never released, and
//! lost when the enclosing run ends.
//!
//! The claim's id follows from owner and name there, so its owner is all that is needed to renew it.

use std::time::Duration;

use tenure::clock::{Clock, Moment, SystemClock};
use tenure::{ClaimId, Error, ErrorKind, Loss, Name, Owner, Tenure};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::hold::{Given, told};
use crate::held::Entry;

/// Renewals per ttl, at least: that the enclosing run has ended is learnt only from them.
const RENEWALS_PER_TTL: u32 = 9;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long one renewal may take at least.
const ANSWER_MIN: Duration = Duration::from_millis(250);
/// The loss is told this long before the deadline.
const LEAD: Duration = Duration::from_millis(2);

/// Whether a nested run on this store shares the claim of the one around it: where there is no token to re-enter with.
pub(crate) fn is_shared_on(tenure: &Tenure) -> bool {
    !tenure.capabilities().sessions
}

/// See the module.
pub(crate) struct Share {
    tenure: Tenure,
    name: Name,
    owner: Owner,
    ttl: Duration,
    state: watch::Receiver<State>,
    keeper: JoinHandle<()>,
}

#[derive(Clone)]
struct State {
    deadline: Moment,
    lost: Option<String>,
    failure: Option<String>,
}

impl Share {
    /// Takes a share. `None` if the enclosing run no longer holds it.
    pub(crate) async fn take(tenure: &Tenure, outer: &Entry, ttl: Duration) -> Result<Option<Self>, Error> {
        let (name, owner) = (outer.name.clone(), outer.owner.clone());
        let deadline = match renew(tenure, &name, &owner, ttl).await {
            Ok(deadline) => deadline,
            Err(error) if error.kind() == ErrorKind::Lost => return Ok(None),
            Err(error) => return Err(error),
        };
        let (sender, state) = watch::channel(State { deadline, lost: None, failure: None });
        let keeper = tokio::spawn(keep(tenure.clone(), name.clone(), owner.clone(), ttl, sender));
        Ok(Some(Self { tenure: tenure.clone(), name, owner, ttl, state, keeper }))
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn claim_id(&self) -> ClaimId {
        ClaimId::of(&self.owner, &self.name)
    }

    pub(crate) fn deadline(&self) -> Moment {
        let state = self.state.borrow();
        if state.lost.is_some() { Moment(0) } else { state.deadline }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline().since(SystemClock.now())
    }

    pub(crate) fn renewal_failure(&self) -> Option<String> {
        self.state.borrow().failure.clone()
    }

    /// Resolves with the reason when the share is lost.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call resolves at once.
    pub(crate) async fn lost(&self) -> String {
        let mut state = self.state.clone();
        let lost = state.wait_for(|state| state.lost.is_some()).await.ok().and_then(|state| state.lost.clone());
        lost.unwrap_or_else(|| Loss::Expired.to_string())
    }

    /// Ends the share, and not the claim. It was worth something only if the claim is still there.
    pub(crate) async fn let_go(self) -> Given {
        self.keeper.abort();
        if let Some(lost) = &self.state.borrow().lost {
            return Given::Lost(lost.clone());
        }
        match renew(&self.tenure, &self.name, &self.owner, self.ttl).await {
            Err(error) if error.kind() == ErrorKind::Lost => Given::Lost(gone(&error)),
            _ if self.remaining().is_zero() => Given::Lost(told(&Loss::Expired, "")),
            // There is nothing to give back, so nothing to tell.
            _ => Given::Back,
        }
    }
}

/// Renews the claim; until when it can be trusted now.
async fn renew(tenure: &Tenure, name: &Name, owner: &Owner, ttl: Duration) -> Result<Moment, Error> {
    // What is left is counted after this moment: rather too early a deadline than too late a one.
    let before = SystemClock.now();
    let lease = tenure.renew_as(name.as_str(), owner, Some(ttl)).await?;
    Ok(before + lease.expires_in)
}

async fn keep(tenure: Tenure, name: Name, owner: Owner, ttl: Duration, state: watch::Sender<State>) {
    let every = (ttl / RENEWALS_PER_TTL).clamp(PAUSE_MIN, PAUSE_MAX);
    let left = || state.borrow().deadline.since(SystemClock.now() + LEAD);
    loop {
        sleep(every.min(left())).await;
        let limit = left().min((ttl / 3).max(ANSWER_MIN));
        let renewed = timeout(limit, renew(&tenure, &name, &owner, ttl)).await;
        let mut lost = false;
        state.send_modify(|state| {
            match renewed {
                Ok(Ok(deadline)) => {
                    state.deadline = state.deadline.max(deadline);
                    state.failure = None;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => state.lost = Some(gone(&error)),
                Ok(Err(error)) => state.failure = Some(error.to_string()),
                Err(_) => drop(state.failure.get_or_insert_with(|| "the store did not answer".to_owned())),
            }
            if state.lost.is_none() && state.deadline <= SystemClock.now() + LEAD {
                let failure = state.failure.as_ref().map(|failure| format!(" (last failure: {failure})"));
                state.lost = Some(told(&Loss::Expired, &failure.unwrap_or_default()));
            }
            lost = state.lost.is_some();
        });
        if lost {
            return;
        }
    }
}

fn gone(error: &Error) -> String {
    match error.loss() {
        Some(Loss::Gone) | None => "the enclosing run, whose lock this run shares, no longer holds it".to_owned(),
        Some(loss) => loss.to_string(),
    }
}
