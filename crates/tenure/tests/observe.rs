//! What a client tells of its locks: metrics, warnings, and the flight recorder.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gated, Reply, TTL, World, still_pending};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tenure::fence::Gate;
use tenure::{Ended, Loss, Tenure};

/// What was recorded so far: `name{label=value,…}` and its value; of a histogram how many values it has.
struct Seen(PrometheusHandle);

impl Seen {
    fn all(&self) -> BTreeMap<String, f64> {
        let text = self.0.render();
        text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
    }

    /// Those that are not zero, without the round trips, which are the store's affair.
    fn nonzero(&self) -> BTreeMap<String, f64> {
        self.all().into_iter().filter(|(key, value)| *value != 0.0 && !key.contains("roundtrip")).collect()
    }
}

/// One line of what Prometheus reads. Of a histogram only the number of values.
fn sample(line: &str) -> Option<(String, f64)> {
    let (key, value) = line.rsplit_once(' ')?;
    let (name, labels) = key.trim_end_matches('}').split_once('{')?;
    if labels.contains("quantile=") || name.ends_with("_sum") {
        return None;
    }
    let mut labels: Vec<_> = labels.split(',').collect();
    labels.sort_unstable();
    let name = name.strip_suffix("_count").unwrap_or(name);
    Some((format!("{name}{{{}}}", labels.join(",").replace('"', "")), value.parse().ok()?))
}

/// Runs a test with a recorder of its own.
fn recorded(test: impl AsyncFnOnce(Seen)) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let seen = Seen(recorder.handle());
    let _here = metrics::set_default_local_recorder(&recorder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(seen));
}

fn metrics<const N: usize>(expected: [(&str, f64); N]) -> BTreeMap<String, f64> {
    expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[test]
fn the_names_and_labels_are_those_that_are_promised() {
    recorded(async |seen| {
        let world = World::new();
        let client = world.client("a");
        let gate = Gate::new(0).named("stock");
        let stale = client.lock("x").acquire().await.unwrap();
        client.break_holders("x", None, "test").await.unwrap();
        let fresh = client.lock("x").acquire().await.unwrap();
        gate.write(&fresh, |stock| *stock += 1).unwrap();
        gate.write(&stale, |stock| *stock += 1).unwrap_err();
        let keys: BTreeSet<String> = seen.all().into_keys().collect();
        let values = |name: &str, label: &str, values: &[&str]| -> BTreeSet<String> {
            values.iter().map(|value| format!("{name}{{{label}={value},store=memory}}")).collect()
        };
        let mut promised: BTreeSet<String> = [
            "tenure_hold_seconds{store=memory}",
            "tenure_renewal_margin_seconds{store=memory}",
            "tenure_held{store=memory}",
            "tenure_waiting{store=memory}",
            "tenure_store_up{store=memory}",
            "tenure_held_too_long_total{store=memory}",
            "tenure_fence_refused_total{resource=stock}",
        ]
        .map(str::to_owned)
        .into();
        let results = ["granted", "busy", "timeout", "unreachable", "refused", "deadlock", "cancelled"];
        promised.extend(values("tenure_acquire_total", "result", &results));
        promised.extend(values("tenure_acquire_wait_seconds", "contended", &["false", "true"]));
        promised.extend(values("tenure_handovers_total", "kind", &["local", "store"]));
        promised.extend(values("tenure_lost_total", "reason", &["expired", "gone", "broken", "max_hold", "session"]));
        promised.extend(values("tenure_renewals_total", "result", &["renewed", "failed", "gone", "broken"]));
        let operations = ["claim", "renew", "release", "block", "inspect", "break"];
        promised.extend(values("tenure_store_roundtrip_seconds", "op", &operations));
        assert_eq!(keys, promised);
    });
}

#[test]
fn each_acquire_is_counted_once_by_its_result() {
    recorded(async |seen| {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let lock = tenure.lock("x").ttl(TTL);
        let guard = lock.acquire().await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        let other = world.client("b");
        let timed_out = other.lock("x").ttl(TTL);
        world.drive("timeout", timed_out.acquire_within(Duration::from_secs(1))).await.unwrap_err();
        other.semaphore("x", 3).acquire().await.unwrap_err();
        {
            let mut cancelled = pin!(timed_out.acquire());
            still_pending(cancelled.as_mut()).await;
            assert_eq!(seen.all()["tenure_waiting{store=memory}"], 1.0);
        }
        gate.set(Reply::Never);
        let unreachable = tenure.lock("y").ttl(TTL);
        world.drive("unreachable", unreachable.acquire_within(Duration::from_secs(1))).await.unwrap_err();
        let expected = metrics([
            ("tenure_acquire_total{result=granted,store=memory}", 1.0),
            ("tenure_acquire_total{result=busy,store=memory}", 1.0),
            ("tenure_acquire_total{result=timeout,store=memory}", 1.0),
            ("tenure_acquire_total{result=refused,store=memory}", 1.0),
            ("tenure_acquire_total{result=cancelled,store=memory}", 1.0),
            ("tenure_acquire_total{result=unreachable,store=memory}", 1.0),
            ("tenure_held{store=memory}", 1.0),
        ]);
        let seen = seen.nonzero();
        let seen: BTreeMap<_, _> = seen.into_iter().filter(|(key, _)| expected.contains_key(key)).collect();
        assert_eq!(seen, expected);
        drop(guard);
    });
}

#[test]
fn waits_holds_and_hand_overs_are_measured() {
    recorded(async |seen| {
        let world = World::new();
        let (one, two) = (world.client("one"), world.client("two"));
        let (first, second) = (one.lock("x").ttl(TTL), two.lock("x").ttl(TTL));
        let held = first.acquire().await.unwrap();
        let (mut next, mut local) = (pin!(second.acquire()), pin!(second.acquire()));
        still_pending(next.as_mut()).await;
        still_pending(local.as_mut()).await;
        held.release().await.unwrap();
        let next = world.drive("the next", next).await.unwrap();
        next.release().await.unwrap();
        let local = world.drive("a task of the same client", local).await.unwrap();
        local.release().await.unwrap();
        let seen = seen.nonzero();
        let expected = metrics([
            ("tenure_acquire_total{result=granted,store=memory}", 3.0),
            ("tenure_acquire_wait_seconds{contended=false,store=memory}", 1.0),
            ("tenure_acquire_wait_seconds{contended=true,store=memory}", 2.0),
            ("tenure_hold_seconds{store=memory}", 3.0),
            ("tenure_handovers_total{kind=store,store=memory}", 1.0),
            ("tenure_handovers_total{kind=local,store=memory}", 1.0),
            ("tenure_store_up{store=memory}", 1.0),
        ]);
        assert_eq!(seen, expected);
    });
}

#[test]
fn losses_and_renewals_are_counted() {
    recorded(async |seen| {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let broken = tenure.lock("broken").ttl(TTL).acquire().await.unwrap();
        let limited = tenure.lock("limited").ttl(TTL).max_hold(TTL / 10).acquire().await.unwrap();
        let slow = tenure.lock("slow").ttl(TTL).warn_after(TTL / 10).acquire().await.unwrap();
        tenure.break_holders("broken", None, "test").await.unwrap();
        world.pass(TTL / 2).await;
        let count = |key: &str| seen.all().get(&format!("tenure_{key}")).copied();
        assert_eq!(count("lost_total{reason=broken,store=memory}"), Some(1.0));
        assert_eq!(count("lost_total{reason=max_hold,store=memory}"), Some(1.0));
        assert_eq!(count("held_too_long_total{store=memory}"), Some(1.0));
        assert!(count("renewals_total{result=renewed,store=memory}") >= Some(1.0));
        gate.set(Reply::FailsNotApplied);
        world.pass(2 * TTL).await;
        assert_eq!(count("lost_total{reason=expired,store=memory}"), Some(1.0));
        assert_eq!(count("store_up{store=memory}"), Some(0.0));
        assert!(count("renewals_total{result=failed,store=memory}") >= Some(1.0));
        gate.open();
        drop((broken, limited, slow));
        let _again = world.drive("acquire", tenure.lock("again").ttl(TTL).acquire()).await.unwrap();
        assert_eq!(count("store_up{store=memory}"), Some(1.0));
        assert_eq!(count("held{store=memory}"), Some(1.0));
    });
}

#[test]
fn ten_thousand_groups_are_65_values_of_a_label() {
    recorded(async |seen| {
        let url = format!("memory:groups-{:016x}", rand::random::<u64>());
        let tenure = Tenure::builder(url).metric_groups_as_met().connect().await.unwrap();
        for group in 0..10_000 {
            drop(tenure.lock(format!("g{group}/x")).acquire().await.unwrap());
        }
        let all = seen.all();
        let granted: Vec<_> = all.iter().filter(|(key, _)| key.contains("result=granted")).collect();
        assert_eq!(granted.len(), 65);
        assert_eq!(granted.iter().map(|(_, count)| **count).sum::<f64>(), 10_000.0);
        assert_eq!(all["tenure_acquire_total{group=other,result=granted,store=memory}"], 10_000.0 - 64.0);
    });
}

#[tokio::test]
async fn the_flight_recorder_says_why_it_was_slow() {
    let world = World::new();
    let (one, two) = (world.client("one"), world.client("two"));
    let held = one.lock("x").ttl(TTL).acquire().await.unwrap();
    let lock = two.lock("x").ttl(TTL);
    let mut waiting = pin!(lock.acquire());
    still_pending(waiting.as_mut()).await;
    world.pass(Duration::from_secs(3)).await;
    held.release().await.unwrap();
    let guard = world.drive("the next", waiting).await.unwrap();
    let token = guard.token();
    world.pass(Duration::from_secs(2)).await;
    two.break_holders("x", None, "test").await.unwrap();
    world.pass(Duration::from_secs(1)).await;
    drop(guard);
    let again = one.lock("x").ttl(TTL).acquire().await.unwrap();
    let brief = two.lock("x").ttl(TTL);
    world.drive("timeout", brief.acquire_within(Duration::from_secs(1))).await.unwrap_err();
    drop(again);

    let recent = two.recent();
    assert_eq!(recent.len(), 2);
    let [timed_out, lost] = &recent[..] else { panic!("{recent:?}") };
    assert_eq!((timed_out.ended.clone(), timed_out.behind.as_deref()), (Ended::TimedOut, Some("one")));
    assert_eq!((timed_out.held, timed_out.token), (None, None));
    let by = Loss::Broken { by: "two".to_owned(), reason: "test".to_owned() };
    assert_eq!(lost.ended, Ended::Lost(by));
    assert_eq!((lost.behind.as_deref(), lost.token), (Some("one"), token));
    assert!(lost.waited >= Duration::from_secs(3) && lost.waited < Duration::from_secs(4), "{lost:?}");
    assert!(lost.held >= Some(Duration::from_secs(3)) && lost.held < Some(Duration::from_secs(4)), "{lost:?}");
    assert!(lost.ago >= Duration::from_secs(1) && lost.ago < Duration::from_secs(2), "{lost:?}");
    let ended: Vec<_> = one.recent().into_iter().map(|recent| recent.ended).collect();
    assert_eq!(ended, [Ended::Released, Ended::Released]);
}

/// Lines of a log, kept.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_renewal_that_is_answered_late_is_warned_of_once_for_all() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let world = World::new();
    let (tenure, gate): (_, Arc<Gated>) = world.gated("a");
    let mut guards = Vec::new();
    for name in ["x", "y", "z"] {
        guards.push(tenure.lock(name).ttl(TTL).acquire().await.unwrap());
    }
    gate.set(Reply::Late);
    world.pass(TTL * 9 / 10).await;
    gate.open();
    world.pass(TTL / 100).await;
    assert!(guards.iter().all(tenure::Guard::is_held));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let late: Vec<_> = log.lines().filter(|line| line.contains("renewed late")).collect();
    assert_eq!(late.len(), 1, "{log}");
    assert!(late[0].contains("WARN") && late[0].contains("leases=3"), "{log}");
}
