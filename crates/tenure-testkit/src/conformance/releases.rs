//! Releases: ending a claim, and giving up.

use tenure::backend::{ClaimRequest, Event, ReleaseRequest, Released, Renewed, Shape};

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
    assert_eq!(two.release(&name, &stranger, None).await, Released::NotFound);
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
    assert_eq!(client.release(&name, &held, None).await, Released::NotFound);
    other.holds(&name, &next).await;
    assert_eq!(client.release(&name, &held, None).await, Released::NotFound);
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
        assert_eq!(client.release(&name, &held, Some(other)).await, Released::NotFound);
        assert!(client.renews(&name, &held).await.state.is_ok());
    }
    client.release(&name, &held, Some(number)).await;
    let view = client.inspect(&name).await;
    assert!(view.is_free(), "its own number ends it: {view:?}");
}

/// A release of a waiting claim only ends it while it waits, whoever it waits behind.
pub async fn a_release_of_a_waiting_claim_only_ends_it_while_it_waits(fixture: &Fixture) {
    let client = fixture.client().await;
    let (name, held) = (fixture.name("while-it-waits"), fixture.request());
    let (gives_up, stays) = (fixture.request(), fixture.request());
    client.holds(&name, &held).await;
    let waiting_only = |number| ReleaseRequest { number, waiting_only: true, ..ReleaseRequest::of(&gives_up) };
    assert_eq!(client.release_as_asked(&name, waiting_only(None)).await, Released::NotFound, "before it waits");
    if fixture.lacks(&client, "queue", |c| c.queue) {
        return;
    }
    let number = client.stands(&name, &gives_up).await.number;
    client.waits(&name, &stays).await;
    let another = waiting_only(Some(number.wrapping_add(1)));
    assert_eq!(client.release_as_asked(&name, another).await, Released::NotFound);
    assert!(client.renews(&name, &gives_up).await.state.is_err(), "another number ends nothing");
    assert_eq!(client.ends_if_it_waits(&name, &gives_up).await, Released::Yes);
    assert_eq!(client.release_as_asked(&name, waiting_only(Some(number))).await, Released::NotFound, "once");
    client.wait_for_place(&name, &stays, 1).await;
    client.releases(&name, &held).await;
    client.wait_for_grant(&name, &stays).await;
    assert_eq!(client.heard_grant(gives_up.id), None);

    let shared = [Shape::Shared, Shape::Shared, Shape::Exclusive];
    let permits = [1, 1, 2].map(|units| Shape::Permits { units, of: 3 });
    for (has, shapes) in [(client.capabilities().shared, shared), (client.capabilities().permits, permits)] {
        if !has {
            continue;
        }
        let name = fixture.name("behind-several");
        let [first, second, waits] = shapes.map(|shape| fixture.request_of(shape));
        client.holds(&name, &first).await;
        client.holds(&name, &second).await;
        client.waits(&name, &waits).await;
        let behind = fixture.request_of(shapes[0]);
        client.waits(&name, &behind).await;
        assert_eq!(client.ends_if_it_waits(&name, &waits).await, Released::Yes);
        client.wait_for_grant(&name, &behind).await;
        assert!(client.renews(&name, &second).await.state.is_ok());
    }
}

/// A release of a waiting claim only leaves one that holds, also if it has held for a moment only.
pub async fn a_release_of_a_waiting_claim_only_leaves_one_that_holds(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let (name, held) = (fixture.name("holds"), fixture.request());
    let number = client.stands(&name, &held).await.number;
    let waiting_only = |number| ReleaseRequest { number, waiting_only: true, ..ReleaseRequest::of(&held) };
    // Through a service a retry has another number in the store, which only its own client knows by the first.
    let in_store = other.inspect(&name).await.holders[0].claims[0].1;
    for (asked, number) in [(&client, number), (&other, in_store)] {
        assert_eq!(asked.release_as_asked(&name, waiting_only(None)).await, Released::Holds);
        assert_eq!(asked.release_as_asked(&name, waiting_only(Some(number))).await, Released::Holds);
        let another = waiting_only(Some(number.wrapping_add(1)));
        assert_eq!(asked.release_as_asked(&name, another).await, Released::NotFound);
    }
    assert!(client.renews(&name, &held).await.state.is_ok());
    other.is_busy(&name, &fixture.request()).await;
    if client.capabilities().shared {
        let name = fixture.name("holds-shared");
        let readers = [(); 2].map(|()| fixture.request_of(Shape::Shared));
        for reader in &readers {
            client.holds(&name, reader).await;
        }
        client.waits(&name, &fixture.request()).await;
        for reader in &readers {
            assert_eq!(client.ends_if_it_waits(&name, reader).await, Released::Holds);
            assert!(client.renews(&name, reader).await.state.is_ok());
        }
    }
    if client.capabilities().sessions {
        let inner = ClaimRequest { owner: held.owner.clone(), ..fixture.request() };
        client.holds(&name, &inner).await;
        assert_eq!(client.ends_if_it_waits(&name, &inner).await, Released::Holds);
        client.releases(&name, &inner).await;
    }
    if !client.capabilities().queue {
        return;
    }
    // Either it ends before its turn, or it has had it and goes on.
    let mut holder = held;
    for _ in 0..8 {
        let (next, behind) = (fixture.request(), fixture.request());
        other.waits(&name, &next).await;
        client.waits(&name, &behind).await;
        let (told, ()) = tokio::join!(other.ends_if_it_waits(&name, &next), client.releases(&name, &holder));
        if told == Released::Holds {
            assert!(other.renews(&name, &next).await.state.is_ok(), "it was said to hold");
            other.releases(&name, &next).await;
        } else {
            assert_eq!((told, other.renew(&name, &next).await), (Released::Yes, Renewed::Gone));
            assert_eq!(other.heard_grant(next.id), None, "it has had its turn");
        }
        client.wait_for_grant(&name, &behind).await;
        holder = behind;
    }
}
