//! A look at a name with a diagnosis: whether its holders renew, how far from the lock each waiter is, what bounds a
//! wait, which deadlocks it is part of.

mod place;
mod renewal;
mod report;
mod turns;

use std::time::Duration;

pub use renewal::Renewal;
pub use report::{Break, Flat, Holder, Report, Wait, Waiter, refused};

pub(crate) use renewal::Teller;

use crate::engine::Tenure;
use crate::error::Result;
use crate::machine::NameView;

/// Two looks that follow each other are at least so far apart.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// How often it looks again at most.
const LOOKS_MAX: u32 = 8;

/// What was seen of a name, and what that says of its holders' renewals.
struct Seen {
    view: NameView,
    /// One for each holder of the view.
    renewals: Vec<Renewal>,
    /// The time between the first look and the last one.
    looked: Duration,
}

impl Tenure {
    /// Looks at a name, and again until every holder was seen to renew, or should have been: for five seconds at most.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name; store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn explain(&self, name: impl AsRef<str>) -> Result<Report> {
        self.explain_after(name, |_| {}).await
    }

    /// The same; `before` is told how long it may take, unless the first look is enough.
    ///
    /// # Errors
    ///
    /// As [`explain`](Self::explain).
    ///
    /// # Cancel safety
    ///
    /// As [`explain`](Self::explain).
    pub async fn explain_after(&self, name: impl AsRef<str>, before: impl FnOnce(Duration)) -> Result<Report> {
        let teller = Teller::of(self.guarantees().store);
        let first = self.inspect(name.as_ref()).await?;
        let answered = self.clock().now();
        let limit = teller.look_for(&first);
        if !limit.is_zero() {
            before(limit);
        }
        let pause = (limit / LOOKS_MAX).max(PAUSE_MIN);
        let judged = teller.judge(&first, &first, Duration::ZERO);
        let mut seen = Seen { renewals: judged, view: first.clone(), looked: Duration::ZERO };
        while seen.looked < limit {
            let pause = pause.min(limit.saturating_sub(seen.looked)).max(PAUSE_MIN);
            self.pause_until(self.clock().now() + pause).await;
            let asked = self.clock().now().since(answered);
            let view = self.inspect(name.as_ref()).await?;
            seen = Seen { renewals: teller.judge(&first, &view, asked), view, looked: asked };
            if seen.renewals.iter().all(|renewal| matches!(renewal, Renewal::Renewing | Renewal::Untold)) {
                break;
            }
        }
        // Nobody is in a deadlock by a name that nobody waits for.
        let mut deadlocks = Vec::new();
        if self.capabilities().queue && !seen.view.waiters.is_empty() {
            deadlocks = self.deadlocks().await?;
            deadlocks.retain(|deadlock| deadlock.is_about(&seen.view.name));
        }
        Ok(Report::of(seen, deadlocks, self))
    }
}
