//! Asking again and again, where a store has no queue.

use std::sync::Arc;
use std::time::Duration;

use tenure::Certainty;
use tenure::backend::{Claimed, Standing};
use tenure::observe::Asked;
use tokio::time::{Instant, sleep_until};

use super::abandon::Abandon;
use super::acquire::{AcquireRequest, Acquired, held};
use super::refusal::{busy, refused, superseded};
use super::shared::{Claims, Listener, News};
use crate::problem::{Answer, Problem};

/// The pauses between two tries.
const TRY_MIN: Duration = Duration::from_millis(20);
const TRY_MAX: Duration = Duration::from_millis(500);

impl Claims {
    /// Asks until the claim is granted or the time is over.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub(super) async fn try_until(
        self: &Arc<Self>,
        asked: &AcquireRequest,
        attempt: u64,
        until: Instant,
        listener: &mut Listener,
        abandon: &mut Abandon,
    ) -> Answer<Acquired> {
        let hints = self.backend.capabilities().hints && !asked.wait.is_zero();
        let mut pause = TRY_MIN;
        loop {
            let told = self.claim(asked, attempt, hints, abandon).await?;
            let place = match told.value {
                Claimed::Stands(Standing { number, ttl, state: Ok(grant) }) => {
                    return Ok(abandon.answered(held(number, grant.token, ttl, told.counted_from)));
                }
                Claimed::Refused(refusal) => {
                    abandon.disarm();
                    return Err(refused(&refusal));
                }
                Claimed::Stands(Standing { state: Err(place), .. }) | Claimed::Busy(place) => place,
            };
            let next = Instant::now() + pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
            pause = (pause * 2).min(TRY_MAX);
            if next >= until {
                abandon.disarm();
                if hints {
                    let declined = self.backend.decline(&asked.name, asked.claim.id);
                    let claims = self.clone();
                    tokio::spawn(
                        async move { drop(claims.ask(Asked::Release, declined, Duration::from_secs(1)).await) },
                    );
                }
                return Err(busy(&place, asked));
            }
            tokio::select! {
                news = listener.news() => match news {
                    News::Superseded => return Err(superseded()),
                    News::Stopping => {
                        let stops = Problem::unavailable("this instance stops", Certainty::NotApplied);
                        return Err(stops.retry_after(Duration::ZERO));
                    }
                    _ => pause = TRY_MIN,
                },
                () = sleep_until(next) => {}
            }
        }
    }
}
