//! What the span of a claim tells, however the claim ended.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Reply, TTL, World, still_pending};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// What a span was told of, by field.
#[derive(Clone, Debug, Default)]
struct Told(BTreeMap<&'static str, String>);

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        let before = self.0.insert(field.name(), value.to_owned());
        assert_eq!(before, None, "{field} is told once");
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Keeps the spans of claims that have ended.
#[derive(Clone, Default)]
struct Claims(Arc<Mutex<Vec<Told>>>);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Claims {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut told = Told::default();
        attributes.record(&mut told);
        context.span(id).unwrap().extensions_mut().insert(told);
    }
    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        values.record(context.span(id).unwrap().extensions_mut().get_mut::<Told>().unwrap());
    }
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if span.name() == "claim" {
            let told = span.extensions_mut().remove::<Told>().unwrap();
            self.0.lock().unwrap().push(told);
        }
    }
}

impl Claims {
    fn listen() -> (Self, DefaultGuard) {
        let claims = Self::default();
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(claims.clone()));
        (claims, guard)
    }

    /// The claim that ended last.
    fn last(&self) -> Told {
        self.0.lock().unwrap().last().cloned().unwrap()
    }
}

impl Told {
    fn of(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    /// How it ended, behind whom, and how long it waited, in milliseconds.
    fn end(&self) -> (Option<&str>, Option<&str>, u64) {
        (self.of("ended"), self.of("behind"), self.of("waited_ms").unwrap().parse().unwrap())
    }
}

#[tokio::test]
async fn a_claim_that_was_not_granted_says_how_long_it_waited_behind_whom_and_for_whom() {
    let (claims, _here) = Claims::listen();
    let world = World::new();
    let _held = world.client("holder").lock("x").ttl(TTL).acquire().await.unwrap();
    let other = world.client("other");
    let session = other.session();
    let owner = session.owner().to_string();
    for lock in [session.lock("x").ttl(TTL), other.lock("x").ttl(TTL)] {
        let is_session = claims.0.lock().unwrap().is_empty();
        world.drive("timeout", lock.acquire_within(Duration::from_secs(3))).await.unwrap_err();
        let told = claims.last();
        let (ended, behind, waited) = told.end();
        assert_eq!((ended, behind), (Some("timed out"), Some("holder")), "{told:?}");
        assert!((3_000..3_500).contains(&waited), "{told:?}");
        assert_eq!(told.of("owner") == Some(&*owner), is_session, "{told:?}");
        assert!(told.of("owner").is_some() && told.of("token").is_none(), "{told:?}");

        assert!(lock.try_acquire().await.unwrap().is_none());
        assert_eq!(claims.last().end(), (Some("busy"), Some("holder"), 0));
        assert!(claims.last().of("owner").is_some());

        {
            let mut cancelled = pin!(lock.acquire());
            still_pending(cancelled.as_mut()).await;
            world.pass(Duration::from_secs(2)).await;
            still_pending(cancelled.as_mut()).await;
        }
        assert_eq!(claims.last().end(), (Some("cancelled"), Some("holder"), 2_000));
        assert!(claims.last().of("owner").is_some());
    }
}

#[tokio::test]
async fn a_claim_that_waits_for_a_task_of_its_process_says_so() {
    let (claims, _here) = Claims::listen();
    let world = World::new();
    let tenure = world.client("me");
    let lock = tenure.lock("x").ttl(TTL);
    let held = lock.acquire().await.unwrap();
    {
        let mut cancelled = pin!(lock.acquire());
        still_pending(cancelled.as_mut()).await;
        world.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(claims.last().end(), (Some("cancelled"), Some("me"), 1_000));
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(claims.last().end(), (Some("busy"), Some("me"), 0));
    world.drive("timeout", lock.acquire_within(Duration::from_secs(1))).await.unwrap_err();
    assert_eq!(claims.last().of("behind"), Some("me"));
    let owner = held.owner().to_string();
    held.release().await.unwrap();
    let told = claims.last();
    assert_eq!((told.end(), told.of("owner")), ((Some("released"), None, 0), Some(&*owner)));
}

#[tokio::test]
async fn a_claim_that_the_store_did_not_answer_is_behind_nobody() {
    let (claims, _here) = Claims::listen();
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    gate.set(Reply::Never);
    let lock = tenure.lock("x").ttl(TTL);
    world.drive("unreachable", lock.acquire_within(Duration::from_secs(1))).await.unwrap_err();
    let told = claims.last();
    assert_eq!((told.of("ended"), told.of("behind")), (Some("store out of reach"), None), "{told:?}");
    assert!(told.of("owner").is_some(), "{told:?}");
}
