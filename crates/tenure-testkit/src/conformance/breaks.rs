//! Breaks: somebody ends the holders' claims.

use tenure::backend::{BreakRequest, Event, Released, Renewed, Shape};
use tenure::{Loss, Token};

use crate::fixture::Fixture;

/// A break ends the holder and the next token is higher.
pub async fn a_break_ends_the_holder_and_the_next_token_is_higher(fixture: &Fixture) {
    let (client, operator) = (fixture.client().await, fixture.client().await);
    let (name, held, next) = (fixture.name("break"), fixture.request(), fixture.request());
    let broken = client.holds(&name, &held).await;
    let queue = client.capabilities().queue;
    if queue {
        client.waits(&name, &next).await;
    }
    operator.breaks(&name, None, ("operator", "stuck"), &[&held.owner]).await;
    let grant = if queue { client.wait_for_grant(&name, &next).await } else { client.holds(&name, &next).await };
    assert!(grant.token > broken.token || !client.capabilities().tokens, "{grant:?} after {broken:?}");
    assert!(!matches!(client.renew(&name, &held).await, Renewed::Stands(_)), "the broken claim has ended");
}

/// A broken holder is told who and why: by an event, and by the answers to its renewal and release.
pub async fn a_broken_holder_is_told_who_and_why(fixture: &Fixture) {
    let (client, operator) = (fixture.client().await, fixture.client().await);
    let (name, held) = (fixture.name("told"), fixture.request());
    client.holds(&name, &held).await;
    operator.breaks(&name, None, ("ops@desk", "deploy of 14:00"), &[&held.owner]).await;
    let (by, reason): (std::sync::Arc<str>, std::sync::Arc<str>) = ("ops@desk".into(), "deploy of 14:00".into());
    if fixture.lacks(&client, "notes of breaks", |c| c.notes) {
        assert_eq!(client.renew(&name, &held).await, Renewed::Gone);
        return;
    }
    // Asked twice: the first answer may have been lost.
    for _ in 0..2 {
        let told = client.renew(&name, &held).await;
        assert!(matches!(&told, Renewed::Broken { by: b, reason: r } if *b == by && *r == reason), "{told:?}");
        let told = client.release(&name, &held, None).await;
        assert!(matches!(&told, Released::Broken { by: b, reason: r } if *b == by && *r == reason), "{told:?}");
    }
    if client.capabilities().queue && client.capabilities().alerts && !fixture.is_unreliable() {
        let loss = Loss::Broken { by: by.to_string(), reason: reason.to_string() };
        let told = |event: &Event| matches!(event, Event::Ended { id, loss: l, .. } if *id == held.id && *l == loss);
        client.hear("the break", || client.events().iter().any(told).then_some(())).await;
    }
    let view = client.inspect(&name).await;
    assert!(view.is_free(), "{view:?}");
}

/// A break of one owner leaves the others.
pub async fn a_break_of_one_owner_leaves_the_others(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "shared claims", |c| c.shared) {
        return;
    }
    let name = fixture.name("one-owner");
    let readers = [(); 3].map(|()| fixture.request_of(Shape::Shared));
    for reader in &readers {
        client.holds(&name, reader).await;
    }
    let stranger = fixture.request().owner;
    client.breaks(&name, Some(&stranger), ("operator", ""), &[]).await;
    client.breaks(&name, Some(&readers[1].owner), ("operator", ""), &[&readers[1].owner]).await;
    assert!(client.renews(&name, &readers[0]).await.state.is_ok());
    assert!(matches!(client.renew(&name, &readers[1]).await, Renewed::Broken { .. }));
    assert!(client.renews(&name, &readers[2]).await.state.is_ok());
}

/// A break of a free name ends nothing.
pub async fn a_break_of_a_free_name_ends_nothing(fixture: &Fixture) {
    let client = fixture.client().await;
    let name = fixture.name("free");
    assert_eq!(client.breaks_nobody(&name).await, 0);
    let held = fixture.request();
    client.holds(&name, &held).await;
    assert!(client.renews(&name, &held).await.state.is_ok(), "nor does it touch who comes after");
}

/// A break up to a token leaves who was granted after it: repeated, it does not evict the next holder.
pub async fn a_break_up_to_a_token_leaves_who_was_granted_after_it(fixture: &Fixture) {
    let (client, operator) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "tokens", |c| c.tokens) {
        return;
    }
    let (name, held, next) = (fixture.name("up-to"), fixture.request(), fixture.request());
    let up_to = |token: Token| BreakRequest { up_to: Some(token), ..BreakRequest::all("operator", "stuck") };
    let token = client.holds(&name, &held).await.token;
    let queue = client.capabilities().queue;
    if queue {
        client.waits(&name, &next).await;
    }
    operator.breaks_as_asked(&name, up_to(Token(token.0 - 1)), &[]).await;
    assert!(client.renews(&name, &held).await.state.is_ok(), "its token is higher");
    operator.breaks_as_asked(&name, up_to(token), &[&held.owner]).await;
    let grant = if queue { client.wait_for_grant(&name, &next).await } else { client.holds(&name, &next).await };
    operator.breaks_as_asked(&name, up_to(token), &[]).await;
    assert_eq!(client.renews(&name, &next).await.state, Ok(grant), "it was granted later");
    let stranger = Some(client.shown_owner(&name, &held.owner));
    operator.breaks_as_asked(&name, BreakRequest { owner: stranger, ..up_to(grant.token) }, &[]).await;
    assert!(client.renews(&name, &next).await.state.is_ok(), "another owner was meant");

    if client.capabilities().shared {
        let name = fixture.name("up-to-shared");
        let readers = [(); 3].map(|()| fixture.request_of(Shape::Shared));
        let mut tokens = Vec::new();
        for reader in &readers {
            tokens.push(client.holds(&name, reader).await.token);
        }
        operator.breaks_as_asked(&name, up_to(tokens[1]), &[&readers[0].owner, &readers[1].owner]).await;
        assert!(!matches!(client.renew(&name, &readers[1]).await, Renewed::Stands(_)));
        assert!(client.renews(&name, &readers[2]).await.state.is_ok());
    }
}

/// A break of a waiter ends it, and it is told who and why: by an event, and by the answer to its renewal. Who stands
/// behind it moves up.
pub async fn a_break_of_a_waiter_ends_it_and_it_is_told_who_and_why(fixture: &Fixture) {
    let (client, operator) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "breaks of waiters", |c| c.waiter_breaks) {
        return;
    }
    let (name, held, waits, behind) = (fixture.name("waiter"), fixture.request(), fixture.request(), fixture.request());
    client.holds(&name, &held).await;
    let number = client.stands(&name, &waits).await.number;
    client.waits(&name, &behind).await;
    assert!(operator.breaks_waiter(&name, (waits.id, number), ("ops@desk", "deadlock: a, b")).await);
    // Asked twice: the first answer may have been lost.
    for _ in 0..2 {
        let told = client.renew(&name, &waits).await;
        let Renewed::Broken { by, reason } = &told else { panic!("{told:?}") };
        assert_eq!((&**by, &**reason), ("ops@desk", "deadlock: a, b"));
    }
    let alerts = client.capabilities().alerts && client.capabilities().pushes;
    if alerts && !fixture.is_unreliable() {
        let loss = Loss::Broken { by: "ops@desk".to_owned(), reason: "deadlock: a, b".to_owned() };
        let told = |event: &Event| matches!(event, Event::Ended { id, loss: l, .. } if *id == waits.id && *l == loss);
        client.hear("the break", || client.events().iter().any(told).then_some(())).await;
    }
    let view = operator.inspect(&name).await;
    let waiting: Vec<_> = view.waiters.iter().map(|waiter| waiter.claim.0).collect();
    assert_eq!((view.holders.len(), waiting), (1, vec![behind.id]), "{view:?}");
    assert!(client.renews(&name, &held).await.state.is_ok());
    client.releases(&name, &held).await;
    client.wait_for_grant(&name, &behind).await;
}

/// A break of a waiter leaves one that holds, and one with another number; one that is gone, too.
pub async fn a_break_of_a_waiter_leaves_one_that_holds_and_one_with_another_number(fixture: &Fixture) {
    let (client, operator) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&client, "breaks of waiters", |c| c.waiter_breaks) {
        return;
    }
    let (name, held, waits) = (fixture.name("waiter-left"), fixture.request(), fixture.request());
    let holds = client.stands(&name, &held).await.number;
    let number = client.stands(&name, &waits).await.number;
    let gone = fixture.request();
    for claim in [(held.id, holds), (waits.id, number.wrapping_add(1)), (gone.id, 1)] {
        operator.breaks_waiter(&name, claim, ("operator", "")).await;
    }
    assert!(client.renews(&name, &held).await.state.is_ok(), "it holds");
    assert!(client.renews(&name, &waits).await.state.is_err(), "another number was meant");
    client.releases(&name, &held).await;
    let grant = client.wait_for_grant(&name, &waits).await;
    operator.breaks_waiter(&name, (waits.id, number), ("operator", "")).await;
    assert_eq!(client.renews(&name, &waits).await.state, Ok(grant), "it holds by now");
}
