//! What a client tells of its locks: metrics, warnings, and the flight recorder.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Gated, Reply, TTL, World, settle, still_pending};
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
        let operations = ["claim", "renew", "release", "block", "inspect", "break", "memo"];
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
            other.flush_metrics();
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
        tenure.flush_metrics();
        other.flush_metrics();
        let seen = seen.nonzero();
        let seen: BTreeMap<_, _> = seen.into_iter().filter(|(key, _)| expected.contains_key(key)).collect();
        assert_eq!(seen, expected);
        drop(guard);
    });
}

#[test]
fn an_acquire_that_is_refused_for_a_deadlock_is_counted_so() {
    recorded(async |seen| {
        let world = World::new();
        let tenure = world.client("a");
        let (one, other) = (tenure.session(), tenure.session().refuse_deadlock());
        let _x = one.lock("x").acquire().await.unwrap();
        let _y = other.lock("y").acquire().await.unwrap();
        let (waits, refused) = (one.lock("y"), other.lock("x"));
        let mut waits = pin!(waits.acquire());
        still_pending(waits.as_mut()).await;
        world.drive("refused", refused.acquire()).await.unwrap_err();
        tenure.flush_metrics();
        assert_eq!(seen.all()["tenure_acquire_total{result=deadlock,store=memory}"], 1.0);
        assert_eq!(tenure.recent()[0].ended, Ended::Deadlock);
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
        one.flush_metrics();
        two.flush_metrics();
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
        tenure.flush_metrics();
        assert_eq!(count("held{store=memory}"), Some(1.0));
    });
}

#[test]
fn what_happened_is_told_within_a_second_and_when_a_client_is_closed_or_gone() {
    recorded(async |seen| {
        let world = World::new();
        let (client, closed) = (world.client("a"), world.client("b"));
        let count = |key: &str| seen.all()[&format!("tenure_{key}{{store=memory}}")];
        let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
        settle().await;
        assert_eq!((count("held"), count("waiting")), (1.0, 0.0), "the first is told at once");
        guard.release().await.unwrap();
        settle().await;
        assert_eq!((count("held"), count("hold_seconds")), (1.0, 0.0), "the next is told a second later");
        world.pass(Duration::from_secs(1)).await;
        assert_eq!((count("held"), count("hold_seconds")), (0.0, 1.0));

        for _ in 0..2_000 {
            drop(client.lock("x").ttl(TTL).acquire().await.unwrap());
        }
        drop(client);
        settle().await;
        let acquired = seen.all()["tenure_acquire_total{result=granted,store=memory}"];
        assert_eq!((count("held"), count("waiting"), acquired), (0.0, 0.0, 2_001.0), "each is counted");
        assert_eq!(count("hold_seconds"), 2_001.0, "each is told, by one that stands for it if need be");
        let waits =
            |contended| seen.all()[&format!("tenure_acquire_wait_seconds{{contended={contended},store=memory}}")];
        assert_eq!((waits(false), waits(true)), (2_001.0, 0.0));

        for _ in 0..2 {
            drop(closed.lock("y").ttl(TTL).acquire().await.unwrap());
            settle().await;
        }
        assert_eq!(count("hold_seconds"), 2_002.0);
        closed.close().await.unwrap();
        assert_eq!(count("hold_seconds"), 2_003.0);
    });
}

#[test]
fn of_round_trips_that_begin_together_one_is_measured_however_long_it_takes() {
    recorded(async |seen| {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let claims = || seen.all()["tenure_store_roundtrip_seconds{op=claim,store=memory}"];
        for name in 0..100 {
            drop(tenure.lock(format!("{name}")).ttl(TTL).acquire().await.unwrap());
        }
        assert_eq!(claims(), 1.0, "all were sent at one moment");
        world.pass(Duration::from_millis(2)).await;
        gate.set(Reply::Late);
        let (slow, quick) = (tenure.lock("slow").ttl(TTL), tenure.lock("quick").ttl(TTL));
        let mut slow = pin!(slow.acquire());
        still_pending(slow.as_mut()).await;
        gate.open();
        drop(quick.acquire().await.unwrap());
        assert_eq!(claims(), 1.0, "the one that was sent first is measured, and not answered yet");
        drop(world.drive("the slow one", slow).await.unwrap());
        assert_eq!(claims(), 2.0);
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
        tenure.flush_metrics();
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
    world.pass(Duration::from_millis(1)).await;
    assert!(brief.try_acquire().await.unwrap().is_none());
    drop(again);

    let recent = two.recent();
    let [busy, timed_out, lost] = &recent[..] else { panic!("{recent:?}") };
    assert_eq!((busy.ended.clone(), busy.behind.as_deref()), (Ended::Busy, Some("one")));
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

impl Log {
    /// Keeps what this thread logs from now on.
    fn keep() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn a_loss_is_warned_of_with_its_reason() {
    let (log, _here) = Log::keep();
    let world = World::new();
    let (tenure, gate): (_, Arc<Gated>) = world.gated("a");
    let _broken = tenure.lock("broken").ttl(TTL).acquire().await.unwrap();
    let _expired = tenure.lock("expired").ttl(TTL).acquire().await.unwrap();
    assert!(!log.text().contains("lease lost"));
    tenure.break_holders("broken", None, "test").await.unwrap();
    gate.set(Reply::FailsNotApplied);
    world.pass(2 * TTL).await;
    let log = log.text();
    let lost: Vec<_> = log.lines().filter(|line| line.contains("lease lost")).collect();
    assert_eq!(lost.len(), 2, "{log}");
    for (line, name) in lost.iter().zip(["broken", "expired"]) {
        assert!(line.contains("WARN") && line.contains(&format!("name={name}")), "{log}");
    }
}

#[tokio::test]
async fn a_renewal_that_is_answered_late_is_warned_of_once_for_all() {
    let (log, _here) = Log::keep();
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
    let log = log.text();
    let late: Vec<_> = log.lines().filter(|line| line.contains("renewed late")).collect();
    assert_eq!(late.len(), 1, "{log}");
    assert!(late[0].contains("WARN") && late[0].contains("leases=3"), "{log}");
}
