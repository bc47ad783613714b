//! A share in the enclosing run's claim, on stores where a holder cannot re-enter: it is renewed, never released, and
//! lost when the enclosing run ends.
//!
//! The claim's id follows from owner and name there, so its owner is all that is needed to renew it.

use std::time::Duration;

use tenure::clock::{Clock, Moment, SystemClock};
use tenure::{ClaimId, Error, ErrorKind, Loss, Name, Owner, Tenure, Token};
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

const ENDED: &str = "the enclosing run, whose lock this run shares, no longer holds it";

/// Whether a nested run on this store shares the claim of the one around it: where a holder cannot re-enter.
pub(crate) fn is_shared_on(tenure: &Tenure) -> bool {
    !tenure.capabilities().sessions
}

/// See the module.
pub(crate) struct Share {
    outer: Outer,
    state: watch::Receiver<State>,
    keeper: JoinHandle<()>,
}

/// The enclosing run's claim.
#[derive(Clone)]
struct Outer {
    tenure: Tenure,
    name: Name,
    owner: Owner,
    /// None where the store has none.
    token: Option<Token>,
    ttl: Duration,
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
        let Entry { name, owner, token, .. } = outer.clone();
        let outer = Outer { tenure: tenure.clone(), name, owner, token, ttl };
        let deadline = match outer.renew().await {
            Ok(Some(deadline)) => deadline,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Lost => return Ok(None),
            Err(error) => return Err(error),
        };
        let (sender, state) = watch::channel(State { deadline, lost: None, failure: None });
        let keeper = tokio::spawn(keep(outer.clone(), sender));
        Ok(Some(Self { outer, state, keeper }))
    }

    pub(crate) fn name(&self) -> &Name {
        &self.outer.name
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.outer.owner
    }

    pub(crate) fn token(&self) -> Option<Token> {
        self.outer.token
    }

    pub(crate) fn claim_id(&self) -> ClaimId {
        ClaimId::of(&self.outer.owner, &self.outer.name)
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
        match self.outer.renew().await {
            Ok(None) => Given::Lost(ENDED.to_owned()),
            Err(error) if error.kind() == ErrorKind::Lost => Given::Lost(gone(&error)),
            _ if self.remaining().is_zero() => Given::Lost(told(&Loss::Expired, "")),
            // There is nothing to give back, so nothing to tell.
            _ => Given::Back,
        }
    }
}

impl Outer {
    /// Renews the claim; until when it can be trusted now. `None` if its owner holds with another token by now.
    async fn renew(&self) -> Result<Option<Moment>, Error> {
        // What is left is counted after this moment: rather too early a deadline than too late a one.
        let before = SystemClock.now();
        let lease = self.tenure.renew_as(self.name.as_str(), &self.owner, Some(self.ttl)).await?;
        // Where a store has no tokens, zero is told.
        let token = lease.token.filter(|token| token.0 > 0);
        Ok((token == self.token).then(|| before + lease.expires_in))
    }
}

async fn keep(outer: Outer, state: watch::Sender<State>) {
    let ttl = outer.ttl;
    let every = (ttl / RENEWALS_PER_TTL).clamp(PAUSE_MIN, PAUSE_MAX);
    let left = || state.borrow().deadline.since(SystemClock.now() + LEAD);
    loop {
        sleep(every.min(left())).await;
        let limit = left().min((ttl / 3).max(ANSWER_MIN));
        let renewed = timeout(limit, outer.renew()).await;
        let mut lost = false;
        state.send_modify(|state| {
            match renewed {
                Ok(Ok(None)) => state.lost = Some(ENDED.to_owned()),
                Ok(Ok(Some(deadline))) => {
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
        Some(Loss::Gone) | None => ENDED.to_owned(),
        Some(loss) => loss.to_string(),
    }
}
