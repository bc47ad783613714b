//! Blocks of tokens: for tasks of one process that hand over in memory.

use tenure::backend::{Block, ClaimRequest};
use tenure::machine::Grant;

use crate::client::Client;
use crate::fixture::Fixture;

const BLOCK: u32 = 32;

fn block_request(fixture: &Fixture) -> ClaimRequest {
    ClaimRequest { block: BLOCK, ..fixture.request() }
}

fn reserved(grant: &Grant) -> u64 {
    grant.block_end.get() - grant.token.get() + 1
}

fn has_no_blocks(fixture: &Fixture, client: &Client) -> bool {
    fixture.lacks(client, "blocks", |c| c.blocks)
}

/// A block reserves tokens that nobody else is given.
pub async fn a_block_reserves_tokens_that_nobody_else_is_given(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_blocks(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("block"), block_request(fixture));
    // So that the floor cannot lift the next token over the block.
    fixture.step_wall(-1_000_000_000);
    let block = client.holds(&name, &held).await;
    assert_eq!(reserved(&block), u64::from(BLOCK));
    client.releases(&name, &held).await;
    let next = other.holds(&name, &fixture.request()).await;
    assert!(next.token > block.block_end, "{next:?} after {block:?}");
    assert_eq!(reserved(&next), 1, "a claim that asks for one token is given one");
}

/// The next block is given while nobody waits; the same request again is given the same block.
pub async fn the_next_block_is_given_while_nobody_waits(fixture: &Fixture) {
    let client = fixture.client().await;
    if has_no_blocks(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("given"), block_request(fixture));
    let mut block = client.holds(&name, &held).await;
    for _ in 0..3 {
        let next = block_request(fixture);
        let given = client.next_block(&name, held.id, block.block_end, &next).await;
        let Block::Given(following) = given else { panic!("nobody waits: {given:?}") };
        assert!(following.token > block.block_end, "{following:?} after {block:?}");
        assert_eq!(reserved(&following), u64::from(BLOCK));
        let again = client.next_block(&name, held.id, block.block_end, &next).await;
        assert_eq!(again, Block::Given(following), "the same request, the same answer");
        block = following;
    }
    assert_eq!(client.renews(&name, &held).await.state, Ok(block), "the claim holds with its last block");
}

/// The next block is the release when somebody waits, and the next task's claim stands at the tail.
pub async fn the_next_block_is_the_release_when_somebody_waits(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_blocks(fixture, &client) {
        return;
    }
    let (name, held, next) = (fixture.name("moved"), block_request(fixture), block_request(fixture));
    let waiting = [fixture.request(), fixture.request()];
    let block = client.holds(&name, &held).await;
    for request in &waiting {
        other.waits(&name, request).await;
    }
    let moved = client.next_block(&name, held.id, block.block_end, &next).await;
    let Block::Moved(standing) = moved else { panic!("somebody waits: {moved:?}") };
    let place = standing.state.expect_err("it stands behind those who waited");
    assert_eq!((place.ahead, place.waiters_ahead), (2, 1));
    let granted = other.wait_for_grant(&name, &waiting[0]).await;
    assert!(granted.token > block.block_end, "{granted:?} after {block:?}");

    let again = client.next_block(&name, held.id, block.block_end, &next).await;
    assert!(matches!(again, Block::Moved(again) if again.number == standing.number), "the same again: the same claim");
    assert_eq!(client.inspect(&name).await.waiters.len(), 2, "it waits once");
    for request in &waiting {
        other.wait_for_grant(&name, request).await;
        other.releases(&name, request).await;
    }
    let last = client.wait_for_grant(&name, &next).await;
    assert_eq!(reserved(&last), u64::from(BLOCK));
}

/// A next block request that names another block changes nothing: a late copy cannot end a claim in use.
pub async fn a_next_block_request_that_names_another_block_changes_nothing(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_blocks(fixture, &client) {
        return;
    }
    let (name, held, next) = (fixture.name("late"), block_request(fixture), block_request(fixture));
    let first = client.holds(&name, &held).await;
    let given = client.next_block(&name, held.id, first.block_end, &next).await;
    let Block::Given(second) = given else { panic!("nobody waits: {given:?}") };
    let waiting = fixture.request();
    other.waits(&name, &waiting).await;
    // With somebody waiting the request for the block after `second` would be the release.
    let late = client.next_block(&name, held.id, first.block_end, &next).await;
    assert_eq!(late, Block::Given(second), "the present state");
    let view = client.inspect(&name).await;
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 1), "{view:?}");
    assert!(other.renews(&name, &waiting).await.state.is_err(), "the waiter still waits");
}
