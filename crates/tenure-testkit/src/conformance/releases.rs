//! Releases: ending a claim, and giving up.

use tenure::backend::{Event, Released, Shape};

use crate::fixture::Fixture;

/// A release grants the next claim and its client hears of it.
pub async fn a_release_grants_the_next_claim_and_its_client_hears_of_it(fixture: &Fixture) {
    let (holder, waiter) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&holder, "queue", |c| c.queue) {
        return;
    }
    let (name, held, next) = (fixture.name("next"), fixture.request(), fixture.request());
    holder.holds(&name, &held).await;
    let number = waiter.stands(&name, &next).await.number;
    holder.releases(&name, &held).await;
    if fixture.is_unreliable() {
        waiter.wait_for_grant(&name, &next).await;
    } else {
        let granted = waiter.hear_grant(next.id).await;
        assert_eq!(waiter.renews(&name, &next).await.state, Ok(granted), "a renewal tells what the event told");
        let numbers = waiter.events().into_iter().filter_map(|event| match event {
            Event::Granted { number, .. } => Some(number),
            _ => None,
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [number], "once");
        assert_eq!(holder.heard_grant(next.id), None, "it is told to its own client alone");
    }
    holder.is_busy(&name, &fixture.request()).await;
}

/// A release ends only its own claim.
pub async fn a_release_ends_only_its_own_claim(fixture: &Fixture) {
    let (one, two) = (fixture.client().await, fixture.client().await);
    let (name, held, stranger) = (fixture.name("own"), fixture.request(), fixture.request());
    one.holds(&name, &held).await;
    assert_eq!(two.release(&name, stranger.id, None).await, Released::NotFound);
    two.is_busy(&name, &stranger).await;
    if two.capabilities().shared {
        let name = fixture.name("own-shared");
        let readers = [fixture.request_of(Shape::Shared), fixture.request_of(Shape::Shared)];
        one.holds(&name, &readers[0]).await;
        two.holds(&name, &readers[1]).await;
        one.releases(&name, &readers[0]).await;
        assert!(two.renews(&name, &readers[1]).await.state.is_ok());
        two.is_busy(&name, &fixture.request()).await;
    }
}

/// A repeated release changes nothing, whoever holds by then.
pub async fn a_repeated_release_changes_nothing(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let (name, held, next) = (fixture.name("twice"), fixture.request(), fixture.request());
    client.holds(&name, &held).await;
    client.releases(&name, &held).await;
    assert_eq!(client.release(&name, held.id, None).await, Released::NotFound);
    other.holds(&name, &next).await;
    assert_eq!(client.release(&name, held.id, None).await, Released::NotFound);
    assert!(other.renews(&name, &next).await.state.is_ok());
    client.is_busy(&name, &fixture.request()).await;
}

/// A release of a waiting claim gives up its place.
pub async fn a_release_of_a_waiting_claim_gives_up_its_place(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "queue", |c| c.queue) {
        return;
    }
    let (name, held) = (fixture.name("gives-up"), fixture.request());
    let (gives_up, stays) = (fixture.request(), fixture.request());
    client.holds(&name, &held).await;
    client.waits(&name, &gives_up).await;
    client.waits(&name, &stays).await;
    client.releases(&name, &gives_up).await;
    let place = client.renews(&name, &stays).await.state.expect_err("the holder still holds");
    assert_eq!((place.ahead, place.waiters_ahead), (1, 0));
    client.releases(&name, &held).await;
    client.wait_for_grant(&name, &stays).await;
    assert_eq!(client.heard_grant(gives_up.id), None);
}

/// A release with another number changes nothing: it was meant for an earlier claim of the same id.
pub async fn a_release_with_another_number_changes_nothing(fixture: &Fixture) {
    let client = fixture.client().await;
    let (name, held) = (fixture.name("number"), fixture.request());
    let earlier = client.stands(&name, &held).await.number;
    client.releases(&name, &held).await;
    let number = client.stands(&name, &held).await.number;
    assert_ne!(number, earlier, "each append has its own number");
    for other in [earlier, number.wrapping_add(1), 0] {
        assert_eq!(client.release(&name, held.id, Some(other)).await, Released::NotFound);
        assert!(client.renews(&name, &held).await.state.is_ok());
    }
    client.release(&name, held.id, Some(number)).await;
    let view = client.inspect(&name).await;
    assert!(view.is_free(), "its own number ends it: {view:?}");
}
