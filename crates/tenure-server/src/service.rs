//! One instance of the service: what its parts share.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tenure::Tenure;
use tenure::backend::Backend;
use tenure::clock::Clock;

use crate::claims::Claims;
use crate::events::Feed;
use crate::gate::Gate;
use crate::health::Health;
use crate::limits::{Limits, Waiters};

/// How many ttls there are on ZooKeeper, where each is a session.
const ZOOKEEPER_STEPS: u32 = 16;

/// One instance.
pub(crate) struct Service {
    pub(crate) claims: Arc<Claims>,
    /// A client of its own for looking, so that no look holds up a claim.
    pub(crate) tenure: Tenure,
    pub(crate) health: Arc<Health>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) gate: Gate,
    pub(crate) feed: Arc<Feed>,
    pub(crate) metrics: Option<PrometheusHandle>,
    ttl_steps: Option<Vec<Duration>>,
}

impl Service {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        tenure: Tenure,
        gate: Gate,
        limits: Limits,
        metrics: Option<PrometheusHandle>,
        groups: &[String],
    ) -> Arc<Self> {
        let health = Health::new(clock.clone());
        let (min, max) = backend.capabilities().ttl_limits();
        let ttl_steps = (backend.guarantees().store == "zookeeper").then(|| steps(min, max));
        Arc::new(Self {
            claims: Claims::new(backend, clock, health.clone(), groups),
            feed: Feed::new(tenure.clone(), limits.streams),
            tenure,
            health,
            waiters: Waiters::new(limits),
            gate,
            metrics,
            ttl_steps,
        })
    }

    /// The ttl that is kept for one that was asked for: the same, or the next longer one where there are few.
    pub(crate) fn ttl(&self, asked: Duration) -> Duration {
        let steps = self.ttl_steps.iter().flatten();
        steps.copied().find(|step| *step >= asked).unwrap_or(asked)
    }
}

/// From the shortest to the longest ttl, each longer than the one before by the same factor.
fn steps(min: Duration, max: Duration) -> Vec<Duration> {
    let factor = max.as_secs_f64() / min.as_secs_f64().max(f64::MIN_POSITIVE);
    let step = |n: u32| min.mul_f64(factor.powf(f64::from(n) / f64::from(ZOOKEEPER_STEPS - 1)));
    let mut steps: Vec<Duration> = (0..ZOOKEEPER_STEPS).map(step).collect();
    if let Some(last) = steps.last_mut() {
        *last = max;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_ttls_reach_from_the_shortest_to_the_longest() {
        let (min, max) = (Duration::from_secs(4), Duration::from_secs(40));
        let steps = steps(min, max);
        assert_eq!((steps.len(), steps[0], steps[15]), (16, min, max));
        assert!(steps.is_sorted());
    }
}
