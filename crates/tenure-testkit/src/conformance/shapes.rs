//! Shapes: exclusive, shared, and permits.

use tenure::backend::{Refusal, Shape};

use crate::fixture::Fixture;

const fn permits(units: u32, of: u32) -> Shape {
    Shape::Permits { units, of }
}

/// Shared claims hold together and exclude exclusive ones, and the other way round.
pub async fn shared_claims_hold_together_and_exclude_exclusive_ones(fixture: &Fixture) {
    let (one, two) = (fixture.client().await, fixture.client().await);
    if fixture.lacks(&one, "shared claims", |c| c.shared) {
        return;
    }
    let name = fixture.name("shared");
    let readers = [fixture.request_of(Shape::Shared), fixture.request_of(Shape::Shared)];
    one.holds(&name, &readers[0]).await;
    two.holds(&name, &readers[1]).await;
    let writer = fixture.request();
    two.is_busy(&name, &writer).await;
    one.releases(&name, &readers[0]).await;
    two.is_busy(&name, &writer).await;
    two.releases(&name, &readers[1]).await;
    two.holds(&name, &writer).await;
    one.is_busy(&name, &fixture.request_of(Shape::Shared)).await;
}

/// A reader behind a waiting writer waits, so that readers cannot starve a writer.
pub async fn a_reader_behind_a_waiting_writer_waits(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "queue of shared claims", |c| c.queue && c.shared) {
        return;
    }
    let name = fixture.name("starve");
    let (reading, writer) = (fixture.request_of(Shape::Shared), fixture.request());
    let behind = [fixture.request_of(Shape::Shared), fixture.request_of(Shape::Shared)];
    client.holds(&name, &reading).await;
    client.waits(&name, &writer).await;
    client.is_busy(&name, &fixture.request_of(Shape::Shared)).await;
    for reader in &behind {
        client.waits(&name, reader).await;
    }
    client.releases(&name, &reading).await;
    client.wait_for_grant(&name, &writer).await;
    assert!(client.renews(&name, &behind[0]).await.state.is_err());
    client.releases(&name, &writer).await;
    for reader in &behind {
        client.wait_for_grant(&name, reader).await;
    }
}

/// Permits hold together up to their number.
pub async fn permits_hold_together_up_to_their_number(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "permits", |c| c.permits) {
        return;
    }
    let name = fixture.name("permits");
    let (two, one) = (fixture.request_of(permits(2, 3)), fixture.request_of(permits(1, 3)));
    client.holds(&name, &two).await;
    client.is_busy(&name, &fixture.request_of(permits(2, 3))).await;
    client.holds(&name, &one).await;
    client.is_busy(&name, &fixture.request_of(permits(1, 3))).await;
    client.releases(&name, &two).await;
    client.is_busy(&name, &fixture.request_of(permits(3, 3))).await;
    client.holds(&name, &fixture.request_of(permits(2, 3))).await;
    client.is_busy(&name, &fixture.request_of(permits(1, 3))).await;
}

/// Another number of permits is refused with both named, and accepted once the name is free.
pub async fn another_number_of_permits_is_refused_with_both_named(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "permits", |c| c.permits) {
        return;
    }
    let name = fixture.name("number");
    let held = fixture.request_of(permits(1, 3));
    client.holds(&name, &held).await;
    let (live, asked) = (permits(1, 3), permits(1, 5));
    let refusal = client.is_refused(&name, &fixture.request_of(asked)).await;
    assert_eq!(refusal, Refusal::Mixed { live, asked });
    client.releases(&name, &held).await;
    client.holds(&name, &fixture.request_of(asked)).await;
}

/// Permits and another shape do not mix, whichever came first.
pub async fn permits_and_another_shape_do_not_mix(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "permits", |c| c.permits) {
        return;
    }
    let shared = client.capabilities().shared.then_some(Shape::Shared);
    for other in [Some(Shape::Exclusive), shared].into_iter().flatten() {
        for (live, asked) in [(permits(1, 2), other), (other, permits(1, 2))] {
            let name = fixture.name("mix");
            client.holds(&name, &fixture.request_of(live)).await;
            let refusal = client.is_refused(&name, &fixture.request_of(asked)).await;
            assert_eq!(refusal, Refusal::Mixed { live, asked });
            let view = client.inspect(&name).await;
            assert!(view.waiters.is_empty(), "a refused claim leaves nothing behind: {view:?}");
        }
    }
}
