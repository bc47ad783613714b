//! Re-entry: a new claim of an owner that holds.

use tenure::Token;
use tenure::backend::{ClaimRequest, Refusal, Shape};

use crate::fixture::Fixture;

/// Another claim of the same owner.
fn nested(fixture: &Fixture, outer: &ClaimRequest, shape: Shape) -> ClaimRequest {
    ClaimRequest { owner: outer.owner.clone(), ..fixture.request_of(shape) }
}

/// An owner that holds re-enters with the same token past any waiter.
pub async fn an_owner_that_holds_re_enters_with_the_same_token_past_any_waiter(fixture: &Fixture) {
    let (client, elsewhere) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "sessions", |c| c.sessions) {
        return;
    }
    let (name, outer, waiting) = (fixture.name("re-enter"), fixture.request(), fixture.request());
    let grant = client.holds(&name, &outer).await;
    if client.capabilities().queue {
        client.waits(&name, &waiting).await;
    }
    for client in [&client, &elsewhere] {
        let inner = client.holds(&name, &nested(fixture, &outer, Shape::Exclusive)).await;
        assert_eq!(inner.token, grant.token);
    }
    if client.capabilities().queue {
        assert!(client.renews(&name, &waiting).await.state.is_err(), "the waiter still waits");
    }
    elsewhere.is_busy(&name, &fixture.request()).await;
}

/// A re-entered holding ends with its last claim, in whichever order they end.
pub async fn a_re_entered_holding_ends_with_its_last_claim(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "sessions", |c| c.sessions) {
        return;
    }
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let (name, outer) = (fixture.name("last"), fixture.request());
        let claims =
            [outer.clone(), nested(fixture, &outer, Shape::Exclusive), nested(fixture, &outer, Shape::Exclusive)];
        for claim in &claims {
            client.holds(&name, claim).await;
        }
        for index in order {
            other.is_busy(&name, &fixture.request()).await;
            client.releases(&name, &claims[index]).await;
            // Retried, it must not take another claim of the owner with it.
            client.release(&name, &claims[index], None).await;
        }
        other.holds(&name, &fixture.request()).await;
    }
}

/// Shared within exclusive stays exclusive until the exclusive claim ends: a downgrade.
pub async fn shared_within_exclusive_stays_exclusive_until_the_exclusive_claim_ends(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "shared claims in sessions", |c| c.shared && c.sessions) {
        return;
    }
    let (name, writing) = (fixture.name("downgrade"), fixture.request());
    let grant = client.holds(&name, &writing).await;
    let reading = nested(fixture, &writing, Shape::Shared);
    assert_eq!(client.holds(&name, &reading).await.token, grant.token);
    other.is_busy(&name, &fixture.request_of(Shape::Shared)).await;
    client.releases(&name, &writing).await;
    let beside = other.holds(&name, &fixture.request_of(Shape::Shared)).await;
    assert!(beside.token > grant.token || !client.capabilities().tokens, "{beside:?} after {grant:?}");
    other.is_busy(&name, &fixture.request()).await;
    assert!(client.renews(&name, &reading).await.state.is_ok());
}

/// Exclusive within shared is refused: two readers that both upgrade would wait for each other for ever.
pub async fn exclusive_within_shared_is_refused(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "shared claims in sessions", |c| c.shared && c.sessions) {
        return;
    }
    let (name, reading) = (fixture.name("upgrade"), fixture.request_of(Shape::Shared));
    client.holds(&name, &reading).await;
    let writing = nested(fixture, &reading, Shape::Exclusive);
    assert_eq!(client.is_refused(&name, &writing).await, Refusal::Upgrade);
    assert_eq!(client.is_refused(&name, &ClaimRequest { queue: false, ..writing }).await, Refusal::Upgrade);
    let view = client.inspect(&name).await;
    assert!(view.waiters.is_empty(), "a refused claim leaves nothing behind: {view:?}");
    assert!(client.renews(&name, &reading).await.state.is_ok(), "and the reader holds");
}

/// Permits within permits of one owner are refused.
pub async fn permits_within_permits_of_one_owner_are_refused(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "permits in sessions", |c| c.permits && c.sessions) {
        return;
    }
    let one_of_three = Shape::Permits { units: 1, of: 3 };
    let (name, outer) = (fixture.name("within"), fixture.request_of(one_of_three));
    client.holds(&name, &outer).await;
    let refusal = client.is_refused(&name, &nested(fixture, &outer, one_of_three)).await;
    assert_eq!(refusal, Refusal::PermitsWithinPermits);
    client.holds(&name, &fixture.request_of(one_of_three)).await;
}

/// Re-entry only is refused unless the owner holds with that token.
pub async fn re_entry_only_is_refused_unless_the_owner_holds_with_that_token(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "tokens in sessions", |c| c.sessions && c.tokens) {
        return;
    }
    let (name, outer) = (fixture.name("only"), fixture.request());
    let re_entry = |token| ClaimRequest { reenter: Some(token), ..nested(fixture, &outer, Shape::Exclusive) };
    assert_eq!(client.is_refused(&name, &re_entry(Token(1))).await, Refusal::NotHeld, "the name is free");

    let grant = client.holds(&name, &outer).await;
    let inner = re_entry(grant.token);
    assert_eq!(client.holds(&name, &inner).await.token, grant.token);
    for stale in [grant.token.get() - 1, grant.token.get() + 1] {
        assert_eq!(client.is_refused(&name, &re_entry(Token(stale))).await, Refusal::NotHeld);
    }
    let stranger = ClaimRequest { reenter: Some(grant.token), ..fixture.request() };
    assert_eq!(client.is_refused(&name, &stranger).await, Refusal::NotHeld, "another owner");

    client.releases(&name, &inner).await;
    client.releases(&name, &outer).await;
    assert_eq!(client.is_refused(&name, &re_entry(grant.token)).await, Refusal::NotHeld, "it has ended");
    let view = client.inspect(&name).await;
    assert!(view.is_free(), "{view:?}");
}
