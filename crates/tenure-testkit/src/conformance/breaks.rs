//! Breaks: somebody ends the holders' claims.

use tenure::Loss;
use tenure::backend::{Event, Released, Renewed, Shape};

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
        let told = client.release(&name, held.id, None).await;
        assert!(matches!(&told, Released::Broken { by: b, reason: r } if *b == by && *r == reason), "{told:?}");
    }
    if client.capabilities().queue && client.capabilities().pushes && !fixture.is_unreliable() {
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
