//! Claims: who holds, who waits, and the same request again.

use tenure::backend::ClaimRequest;

use crate::fixture::Fixture;

/// A free name is granted at once.
pub async fn a_free_name_is_granted_at_once(fixture: &Fixture) {
    let client = fixture.client().await;
    client.holds(&fixture.name("waits"), &fixture.request()).await;
    client.holds(&fixture.name("does-not"), &ClaimRequest { queue: false, ..fixture.request() }).await;
}

/// A held name is busy for a claim that does not wait, which is told who holds and for how long.
pub async fn a_held_name_is_busy_for_a_claim_that_does_not_wait(fixture: &Fixture) {
    let (holder, other) = (fixture.client().await, fixture.client().await);
    let (name, held) = (fixture.name("busy"), fixture.request());
    holder.holds(&name, &held).await;
    for client in [&other, &holder] {
        let place = client.is_busy(&name, &fixture.request()).await;
        if client.capabilities().records {
            assert_eq!(place.holder, held.label, "the holder is named");
        }
        assert!(place.holder_expires_in <= held.ttl, "{place:?}");
        assert!(!place.holder_expires_in.is_zero(), "{place:?}");
    }
    let standing = holder.renews(&name, &held).await;
    assert!(standing.state.is_ok(), "the holder still holds: {standing:?}");
}

/// A busy claim leaves nothing behind: neither a waiter nor a holder once the name is free.
pub async fn a_busy_claim_leaves_nothing_behind(fixture: &Fixture) {
    let client = fixture.client().await;
    let (name, held, refused) = (fixture.name("nothing"), fixture.request(), fixture.request());
    client.holds(&name, &held).await;
    client.is_busy(&name, &refused).await;
    let view = client.inspect(&name).await;
    assert!(view.waiters.is_empty(), "{view:?}");
    client.releases(&name, &held).await;
    let view = client.inspect(&name).await;
    assert!(view.is_free(), "{view:?}");
    assert_eq!(client.heard_grant(refused.id), None);
}

/// A claim that waits is told its place and who holds.
pub async fn a_claim_that_waits_is_told_its_place_and_who_holds(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "queue", |c| c.queue) {
        return;
    }
    let (name, held) = (fixture.name("place"), fixture.request());
    client.holds(&name, &held).await;
    for waiters_ahead in 0..3 {
        let place = client.waits(&name, &fixture.request()).await;
        assert_eq!((place.ahead, place.waiters_ahead), (waiters_ahead + 1, waiters_ahead));
        assert_eq!(place.holder, held.label);
        assert!(place.holder_expires_in <= held.ttl, "{place:?}");
    }
}

/// Waiting claims are granted in the order they came.
pub async fn waiting_claims_are_granted_in_the_order_they_came(fixture: &Fixture) {
    let (one, two) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&one, "queue", |c| c.queue) {
        return;
    }
    let (name, held) = (fixture.name("order"), fixture.request());
    one.holds(&name, &held).await;
    let waiting: Vec<_> = (0..5).map(|index| (if index % 2 == 0 { &two } else { &one }, fixture.request())).collect();
    for (client, request) in &waiting {
        client.waits(&name, request).await;
    }
    one.releases(&name, &held).await;
    for (index, (client, request)) in waiting.iter().enumerate() {
        client.wait_for_grant(&name, request).await;
        for (behind, (later, other)) in waiting.iter().enumerate().skip(index + 1) {
            later.wait_for_place(&name, other, behind - index).await;
        }
        client.releases(&name, request).await;
    }
}

/// The same claim id again answers the same grant and renews it.
pub async fn the_same_claim_id_again_answers_the_same_grant_and_renews_it(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let ttl = fixture.ttl_short(&client.capabilities());
    let (name, held) = (fixture.name("again"), ClaimRequest { ttl, ..fixture.request() });
    let first = client.stands(&name, &held).await;
    // Each repetition is within the ttl of the one before, and the last is beyond the ttl of the first.
    for _ in 0..5 {
        fixture.pass(ttl / 4).await;
        let again = client.stands(&name, &held).await;
        assert_eq!(again, first);
    }
    other.is_busy(&name, &fixture.request()).await;
    assert_eq!(client.inspect(&name).await.holders.len(), 1, "it holds once");
    client.releases(&name, &held).await;
    let view = client.inspect(&name).await;
    assert!(view.is_free(), "one release ends it: {view:?}");
}

/// The same claim id again keeps its place in the queue.
pub async fn the_same_claim_id_again_keeps_its_place_in_the_queue(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "queue", |c| c.queue) {
        return;
    }
    let (name, held) = (fixture.name("place"), fixture.request());
    let (first, second) = (fixture.request(), fixture.request());
    client.holds(&name, &held).await;
    client.waits(&name, &first).await;
    client.waits(&name, &second).await;
    let place = client.waits(&name, &first).await;
    assert_eq!((place.ahead, place.waiters_ahead), (1, 0));
    assert_eq!(client.inspect(&name).await.waiters.len(), 2, "it waits once");
    client.releases(&name, &held).await;
    client.wait_for_grant(&name, &first).await;
    assert!(client.renews(&name, &second).await.state.is_err(), "the second still waits");
}
