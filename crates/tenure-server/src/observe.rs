//! What the service tells of the claims that it serves: metrics, spans and the flight recorder, as the library does.

use std::sync::Arc;
use std::time::Duration;

use tenure::observe::Ended;
use tenure::{ClaimId, Loss, Recent};

use crate::claims::{AcquireRequest, Acquired, Kept};
use crate::problem::{Answer, Problem};
use crate::service::Service;

/// How often leases that nobody renewed are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Service {
    /// Tells of an acquire while it is made.
    ///
    /// # Cancel safety
    ///
    /// As the acquire's; it is then told as cancelled.
    pub(crate) async fn observe_acquire(
        &self,
        asked: &AcquireRequest,
        acquire: impl Future<Output = Answer<Acquired>>,
    ) -> Answer<Acquired> {
        let request = &asked.claim;
        let asking = self.claims.served.asks(request.id, &request.owner, &asked.name, &request.label);
        let acquired = acquire.await;
        match &acquired {
            Ok(Acquired::Held(held)) => {
                asking.granted(held.token, held.behind.clone(), held.trusted_until);
            }
            Ok(Acquired::Waits { trusted_until, .. }) => asking.waits(*trusted_until),
            Err(problem) => asking.ended(ended(problem), problem.holder().map(Into::into)),
        }
        acquired
    }

    /// Tells of a renewal.
    pub(crate) fn observe_renewal(&self, id: ClaimId, kept: &Kept) {
        let served = &self.claims.served;
        match kept {
            Kept::Held { trusted_until, .. } | Kept::Waits { trusted_until, .. } => served.renewed(id, *trusted_until),
            Kept::Lost => served.lost(id, Loss::Gone),
            Kept::Broken { by, reason } => {
                served.lost(id, Loss::Broken { by: by.to_string(), reason: reason.to_string() });
            }
            Kept::Unknown(_) => served.renewal_failed(),
        }
    }

    /// The claims that ended last.
    pub(crate) fn recent(&self) -> Vec<Recent> {
        self.claims.served.recent()
    }

    /// Tells of what nobody asks for any more.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the next one goes on.
    pub(crate) async fn keep_reporting(self: Arc<Self>) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            self.claims.served.sweep();
            self.claims.served.tell();
            self.claims.served.store_is(self.health.is_ready());
        }
    }
}

fn ended(problem: &Problem) -> Ended {
    match problem.kind() {
        "busy" => Ended::Busy,
        "timeout" => Ended::TimedOut,
        "superseded" => Ended::Cancelled,
        _ if problem.is_transient() => Ended::Unreachable,
        _ => Ended::Refused,
    }
}
