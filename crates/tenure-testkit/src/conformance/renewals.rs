//! Renewals: a claim lives as long as somebody renews it.

use std::time::Duration;

use tenure::backend::{ClaimRequest, RenewRequest, Renewed};

use crate::fixture::Fixture;

/// How often, and how many times, a renewal asks whether a waiting claim holds by now.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const LOOKS_MAX: u32 = 50;

/// A renewal keeps a claim alive beyond its first ttl.
pub async fn a_renewal_keeps_a_claim_alive_beyond_its_first_ttl(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let ttl = fixture.ttl_short(&client.capabilities());
    let (name, held) = (fixture.name("alive"), ClaimRequest { ttl, ..fixture.request() });
    let grant = client.holds(&name, &held).await;
    for _ in 0..6 {
        fixture.pass(ttl / 4).await;
        let standing = client.renews(&name, &held).await;
        assert_eq!(standing.state.map(|g| g.token), Ok(grant.token), "the same grant");
    }
    other.is_busy(&name, &fixture.request()).await;
}

/// A renewal keeps a waiting claim in its place: a waiter is a lease-in-waiting.
pub async fn a_renewal_keeps_a_waiting_claim_in_its_place(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "queue", |c| c.queue) {
        return;
    }
    let ttl = fixture.ttl_short(&client.capabilities());
    let (name, held) = (fixture.name("waits"), ClaimRequest { ttl: Duration::from_secs(120), ..fixture.request() });
    let waiting = ClaimRequest { ttl, ..fixture.request() };
    let behind = ClaimRequest { ttl: Duration::from_secs(120), ..fixture.request() };
    client.holds(&name, &held).await;
    client.waits(&name, &waiting).await;
    client.waits(&name, &behind).await;
    for _ in 0..6 {
        fixture.pass(ttl / 4).await;
        let place = client.renews(&name, &waiting).await.state.expect_err("the holder still holds");
        assert_eq!((place.ahead, place.waiters_ahead), (1, 0));
    }
    client.releases(&name, &held).await;
    client.wait_for_grant(&name, &waiting).await;
}

/// A renewal answers that a waiting claim holds by now, so that a lost event costs no more than a delay: at once, or
/// where a store has its queues watched, as soon as the watch has told it.
pub async fn a_renewal_answers_that_a_waiting_claim_holds_by_now(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "queue", |c| c.queue) {
        return;
    }
    let (name, held, waiting) = (fixture.name("by-now"), fixture.request(), fixture.request());
    let earlier = client.holds(&name, &held).await;
    let before = other.stands(&name, &waiting).await;
    client.releases(&name, &held).await;
    // A store that has its queues watched may know of the release a moment after it was answered.
    let mut now = other.renews(&name, &waiting).await;
    for _ in 0..LOOKS_MAX {
        if now.state.is_ok() {
            break;
        }
        fixture.pass(LOOK_AGAIN).await;
        now = other.renews(&name, &waiting).await;
    }
    let grant = now.state.expect("it is next");
    assert_eq!(now.number, before.number, "the same claim");
    assert!(grant.token > earlier.token || !client.capabilities().tokens, "{grant:?} after {earlier:?}");
}

/// A shorter ttl keeps the longer one.
pub async fn a_shorter_ttl_keeps_the_longer_one(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let short = fixture.ttl_short(&client.capabilities());
    let (name, held) = (fixture.name("shorter"), ClaimRequest { ttl: short * 40, ..fixture.request() });
    client.holds(&name, &held).await;
    let shorter = RenewRequest { ttl: short, ..RenewRequest::of(&name, &held) };
    let answers = client.renew_all(vec![shorter]).await;
    // Without records the store knows what is left of the longer one, and answers that.
    let exact = client.capabilities().records;
    let longer = |ttl| if exact { ttl == held.ttl } else { short < ttl && ttl <= held.ttl };
    assert!(matches!(&answers[..], [Renewed::Stands(standing)] if longer(standing.ttl)), "{answers:?}");
    fixture.pass(short * 2).await;
    other.is_busy(&name, &fixture.request()).await;
    let repeated = client.stands(&name, &ClaimRequest { ttl: short, ..held.clone() }).await;
    assert!(longer(repeated.ttl), "nor does the same claim with a shorter one: {repeated:?}");
    client.releases(&name, &held).await;
}

/// A renewal that names another number changes nothing, and answers the number that the claim has.
pub async fn a_renewal_that_names_another_number_changes_nothing(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "queue", |c| c.queue) {
        return;
    }
    let ttl = fixture.ttl_short(&client.capabilities()) * 10;
    let (name, held) = (fixture.name("another-number"), ClaimRequest { ttl, ..fixture.request() });
    let waiting = ClaimRequest { ttl, ..fixture.request() };
    client.holds(&name, &held).await;
    client.waits(&name, &waiting).await;
    for claim in [&held, &waiting] {
        let before = client.renews(&name, claim).await;
        // Far from it: a claim that is asked for again and again has a new number each time.
        let another = before.number + 1_000_000;
        for asks in [&client, &other] {
            let longer = RenewRequest { ttl: ttl * 2, number: Some(another), ..RenewRequest::of(&name, claim) };
            let answers = asks.renew_all(vec![longer]).await;
            let [Renewed::Stands(now)] = &answers[..] else { panic!("it stands: {answers:?}") };
            assert!(now.number < another && now.ttl == before.ttl, "{now:?} after {before:?}");
            assert_eq!(now.state.is_ok(), before.state.is_ok(), "{now:?}");
        }
        let after = client.renews(&name, claim).await;
        assert_eq!((after.number, after.ttl), (before.number, before.ttl), "nothing has changed");
        let longer = RenewRequest { ttl: ttl * 2, number: Some(before.number), ..RenewRequest::of(&name, claim) };
        let answers = client.renew_all(vec![longer]).await;
        assert!(matches!(&answers[..], [Renewed::Stands(now)] if now.ttl > before.ttl), "{answers:?}");
    }
}

/// A renewal of a claim the store lacks answers gone and puts nothing back.
pub async fn a_renewal_of_a_claim_the_store_lacks_answers_gone_and_puts_nothing_back(fixture: &Fixture) {
    let client = fixture.client().await;
    let (name, never, ended) = (fixture.name("gone"), fixture.request(), fixture.request());
    assert_eq!(client.renew(&name, &never).await, Renewed::Gone);
    client.holds(&name, &ended).await;
    assert_eq!(client.renew(&name, &never).await, Renewed::Gone, "beside another claim");
    client.releases(&name, &ended).await;
    assert_eq!(client.renew(&name, &ended).await, Renewed::Gone);
    let view = client.inspect(&name).await;
    assert!(view.is_free(), "{view:?}");
}

/// A batch answers for each claim in order, across names, whatever the answers are.
pub async fn a_batch_answers_for_each_claim_in_order(fixture: &Fixture) {
    let client = fixture.client().await;
    let held: Vec<_> = (0..5).map(|index| (fixture.name(&format!("batch-{index}")), fixture.request())).collect();
    let mut tokens = Vec::new();
    for (name, request) in &held {
        tokens.push(client.holds(name, request).await.token);
    }
    let mut batch: Vec<_> = held.iter().map(|(name, request)| RenewRequest::of(name, request)).collect();
    // One the store lacks, in the middle, on a name that is held.
    batch.insert(2, RenewRequest::of(&held[0].0, &fixture.request()));
    let answers = client.renew_all(batch).await;
    assert_eq!(answers.len(), held.len() + 1);
    assert_eq!(answers[2], Renewed::Gone);
    let renewed = answers.iter().filter(|answer| **answer != Renewed::Gone).map(|answer| match answer {
        Renewed::Stands(standing) => standing.state.as_ref().expect("it holds").token,
        other => panic!("{other:?}"),
    });
    assert_eq!(renewed.collect::<Vec<_>>(), tokens);
    assert!(client.renew_all(Vec::new()).await.is_empty(), "nothing to renew, nothing to answer");
}
