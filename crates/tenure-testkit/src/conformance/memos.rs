//! Memos: what the exclusive holder writes with a name, and the store's time.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{Block, ClaimRequest, Memo, MemoKind, MemoWrite, MemoWritten, Shape};
use tenure::{MEMO_BYTES_MAX, Name, Token};

use crate::client::Client;
use crate::fixture::Fixture;

/// How often a memo is read that is to have ended, and the part of its time that passes between two looks.
const LOOKS_MAX: u32 = 60;

fn has_no_memos(fixture: &Fixture, client: &Client) -> bool {
    fixture.lacks(client, "memos", |c| c.memos)
}

/// A write of this claim, over no memo.
fn first_write(claim: &ClaimRequest, token: Token, text: &str) -> MemoWrite {
    MemoWrite {
        id: claim.id,
        owner: claim.owner.clone(),
        number: None,
        token,
        after: 0,
        write: rand::random(),
        kind: MemoKind::User,
        keep: None,
        bytes: Arc::from(text.as_bytes()),
    }
}

/// Another write of the same claim.
fn next_write(before: &MemoWrite, after: u64, text: &str) -> MemoWrite {
    MemoWrite { after, write: rand::random(), bytes: Arc::from(text.as_bytes()), ..before.clone() }
}

async fn writes(client: &Client, name: &Name, write: &MemoWrite) -> u64 {
    match client.write_memo(name, write).await {
        MemoWritten::Done { version } => version,
        other => panic!("{write:?} of {name} was to be written: {other:?}"),
    }
}

async fn is_not_holder(client: &Client, name: &Name, write: &MemoWrite) {
    let answer = client.write_memo(name, write).await;
    assert_eq!(answer, MemoWritten::NotHolder, "{write:?} of {name} was to be refused");
}

async fn reads(client: &Client, name: &Name) -> Memo {
    client.memo(name).await.unwrap_or_else(|| panic!("{name} was to have a memo"))
}

/// The exclusive holder writes a memo that anyone reads.
pub async fn the_exclusive_holder_writes_a_memo_that_anyone_reads(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("memo"), fixture.request());
    let grant = client.holds(&name, &held).await;
    let first = first_write(&held, grant.token, "one");
    let version = writes(&client, &name, &first).await;
    assert_ne!(version, 0, "zero is no memo");
    for reader in [&client, &other] {
        let memo = reads(reader, &name).await;
        assert_eq!((memo.token, memo.version, memo.kind), (grant.token, version, MemoKind::User));
        assert_eq!(&*memo.bytes, b"one");
        assert!(memo.age < Duration::from_secs(120), "{memo:?} was written just now");
    }
    let second = next_write(&first, version, "two");
    let following = writes(&client, &name, &second).await;
    assert_ne!(following, version, "each write has a version of its own");
    assert_eq!(&*reads(&other, &name).await.bytes, b"two");
    assert_eq!(other.memo(&fixture.name("memo")).await, None, "another name");
}

/// A memo of the largest size comes back as it was written, and so does an empty one.
pub async fn a_memo_of_the_largest_size_comes_back_as_it_was_written(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("large"), fixture.request());
    let grant = client.holds(&name, &held).await;
    // Every byte there is, zeros and what is no text among them.
    let bytes: Vec<u8> = (0..MEMO_BYTES_MAX).map(|at| u8::try_from((at * 7 + at / 256) % 256).unwrap_or(0)).collect();
    let large = MemoWrite { bytes: bytes.clone().into(), ..first_write(&held, grant.token, "") };
    let version = writes(&client, &name, &large).await;
    assert!(*reads(&other, &name).await.bytes == *bytes, "64 KiB come back");
    writes(&client, &name, &next_write(&large, version, "")).await;
    assert!(reads(&other, &name).await.bytes.is_empty(), "nothing comes back as nothing, not as no memo");
}

/// A waiter and a stranger write no memo.
pub async fn a_waiter_and_a_stranger_write_no_memo(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held, waiting) = (fixture.name("stranger"), fixture.request(), fixture.request());
    is_not_holder(&other, &name, &first_write(&waiting, Token(1), "nobody holds it")).await;
    let grant = client.holds(&name, &held).await;
    other.waits(&name, &waiting).await;
    is_not_holder(&other, &name, &first_write(&waiting, grant.token, "waiting")).await;
    let stranger = fixture.request();
    is_not_holder(&other, &name, &first_write(&stranger, grant.token, "stranger")).await;
    assert_eq!(client.memo(&name).await, None, "nothing was written");
    writes(&client, &name, &first_write(&held, grant.token, "holder")).await;
}

/// A reader and a holder of permits write no memo.
pub async fn a_reader_and_a_holder_of_permits_write_no_memo(fixture: &Fixture) {
    let client = fixture.client().await;
    if has_no_memos(fixture, &client) {
        return;
    }
    let can = client.capabilities();
    for (has, shape) in [(can.shared, Shape::Shared), (can.permits, Shape::Permits { units: 1, of: 3 })] {
        if !has {
            continue;
        }
        let (name, held) = (fixture.name("reader"), fixture.request_of(shape));
        let grant = client.holds(&name, &held).await;
        is_not_holder(&client, &name, &first_write(&held, grant.token, "reader")).await;
        assert_eq!(client.memo(&name).await, None, "{shape} writes nothing");
    }
}

/// An expired or broken holder writes no memo.
pub async fn an_expired_or_broken_holder_writes_no_memo(fixture: &Fixture) {
    let (client, operator) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("broken"), fixture.request());
    let grant = client.holds(&name, &held).await;
    operator.breaks(&name, None, ("operator", "test"), &[&held.owner]).await;
    is_not_holder(&client, &name, &first_write(&held, grant.token, "broken")).await;

    let ttl = fixture.ttl_short(&client.capabilities());
    let (name, held) = (fixture.name("expired"), ClaimRequest { ttl, ..fixture.request() });
    let grant = client.holds(&name, &held).await;
    let next = fixture.request();
    let queue = client.capabilities().queue;
    if queue {
        operator.waits(&name, &next).await;
    }
    fixture.pass(ttl + ttl / 4).await;
    if queue {
        // Wherever a store keeps claims alive by itself for a little longer, the next holder tells that it is over.
        operator.wait_for_grant(&name, &next).await;
    }
    is_not_holder(&client, &name, &first_write(&held, grant.token, "expired")).await;
    assert_eq!(operator.memo(&name).await, None, "nothing was written");
}

/// An earlier holder writes no memo, not even over the version that it knows.
pub async fn an_earlier_holder_writes_no_memo(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held, next) = (fixture.name("earlier"), fixture.request(), fixture.request());
    let grant = client.holds(&name, &held).await;
    let first = first_write(&held, grant.token, "first");
    let version = writes(&client, &name, &first).await;
    client.releases(&name, &held).await;
    is_not_holder(&client, &name, &next_write(&first, version, "released")).await;
    let following = other.holds(&name, &next).await;
    is_not_holder(&client, &name, &next_write(&first, version, "late")).await;
    let borrowed = MemoWrite { token: following.token, ..next_write(&first, version, "late") };
    is_not_holder(&client, &name, &borrowed).await;
    let memo = reads(&other, &name).await;
    assert_eq!((memo.version, &*memo.bytes), (version, &b"first"[..]), "it is as it was");
    writes(&other, &name, &MemoWrite { after: version, ..first_write(&next, following.token, "second") }).await;
}

/// A memo is written with a token of the present block only: a task of a cohort that has handed over writes nothing
/// once the next block is asked for.
pub async fn a_memo_is_written_with_a_token_of_the_present_block_only(fixture: &Fixture) {
    let client = fixture.client().await;
    if has_no_memos(fixture, &client) {
        return;
    }
    let blocks = client.capabilities().blocks;
    let block = if blocks { 32 } else { 1 };
    let (name, held) = (fixture.name("block"), ClaimRequest { block, ..fixture.request() });
    let grant = client.holds(&name, &held).await;
    let write = first_write(&held, grant.block_end, "last of the block");
    let beyond = Token(grant.block_end.get() + 1);
    is_not_holder(&client, &name, &MemoWrite { token: beyond, ..next_write(&write, 0, "beyond") }).await;
    let before = Token(grant.token.get() - 1);
    is_not_holder(&client, &name, &MemoWrite { token: before, ..next_write(&write, 0, "before") }).await;
    let version = writes(&client, &name, &write).await;
    if blocks {
        let next = ClaimRequest { block, ..fixture.request() };
        let given = client.next_block(&name, held.id, grant.block_end, &next).await;
        let Block::Given(following) = given else { panic!("nobody waits: {given:?}") };
        is_not_holder(&client, &name, &next_write(&write, version, "of the block before")).await;
        let present = MemoWrite { token: following.token, ..next_write(&write, version, "of this block") };
        writes(&client, &name, &present).await;
    }
}

/// A memo is written by the attempt that has the claim: one from which it was taken over writes nothing.
pub async fn a_memo_write_with_another_number_changes_nothing(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("number"), ClaimRequest { attempt: 1, ..fixture.request() });
    let first = client.stands(&name, &held).await;
    let token = first.state.expect("a free name is granted").token;
    let write = MemoWrite { number: Some(first.number), ..first_write(&held, token, "first") };
    let version = writes(&client, &name, &write).await;
    let second = other.stands(&name, &ClaimRequest { attempt: 2, ..held.clone() }).await;
    assert_ne!(second.number, first.number, "another attempt takes the claim over");
    is_not_holder(&client, &name, &next_write(&write, version, "late")).await;
    let taken = MemoWrite { number: Some(second.number), ..next_write(&write, version, "second") };
    writes(&other, &name, &taken).await;
    assert_eq!(&*reads(&client, &name).await.bytes, b"second");
}

/// A memo write over another version changes nothing and answers the present memo.
pub async fn a_memo_write_over_another_version_changes_nothing_and_answers_the_present_memo(fixture: &Fixture) {
    let client = fixture.client().await;
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("version"), fixture.request());
    let grant = client.holds(&name, &held).await;
    let first = first_write(&held, grant.token, "one");
    let answer = client.write_memo(&name, &next_write(&first, 77, "over what is not there")).await;
    assert_eq!(answer, MemoWritten::Changed(None));
    let version = writes(&client, &name, &first).await;
    for other in [0, version + 1, version - 1] {
        let answer = client.write_memo(&name, &next_write(&first, other, "over another")).await;
        let MemoWritten::Changed(Some(present)) = answer else { panic!("over {other}: {answer:?}") };
        assert_eq!((present.version, &*present.bytes), (version, &b"one"[..]));
    }
    assert_eq!(&*reads(&client, &name).await.bytes, b"one");
}

/// The same memo write again is one write.
pub async fn the_same_memo_write_again_is_one_write(fixture: &Fixture) {
    let client = fixture.client().await;
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held) = (fixture.name("again"), fixture.request());
    let grant = client.holds(&name, &held).await;
    let write = first_write(&held, grant.token, "once");
    let version = writes(&client, &name, &write).await;
    assert_eq!(writes(&client, &name, &write).await, version, "the same answer");
    assert_eq!(reads(&client, &name).await.version, version, "and no second write");
    client.releases(&name, &held).await;
    // Before any other check: the one who asks was not answered, and wants to know.
    assert_eq!(writes(&client, &name, &write).await, version, "also when it no longer holds");
}

/// A late copy of a memo write changes nothing, whoever holds by then.
pub async fn a_late_copy_of_a_memo_write_changes_nothing(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let (name, held, next) = (fixture.name("late"), fixture.request(), fixture.request());
    let grant = client.holds(&name, &held).await;
    let first = first_write(&held, grant.token, "one");
    let version = writes(&client, &name, &first).await;
    let second = next_write(&first, version, "two");
    let following = writes(&client, &name, &second).await;
    let answer = client.write_memo(&name, &first).await;
    assert!(matches!(&answer, MemoWritten::Changed(Some(memo)) if memo.version == following), "{answer:?}");
    client.releases(&name, &held).await;
    let grant = other.holds(&name, &next).await;
    let third = MemoWrite { after: following, ..first_write(&next, grant.token, "three") };
    let last = writes(&other, &name, &third).await;
    for late in [&first, &second] {
        is_not_holder(&client, &name, late).await;
    }
    let memo = reads(&other, &name).await;
    assert_eq!((memo.version, &*memo.bytes), (last, &b"three"[..]));
}

/// A memo of another kind is refused, so that recipes do not erase each other's.
pub async fn a_memo_of_another_kind_is_refused(fixture: &Fixture) {
    let client = fixture.client().await;
    if has_no_memos(fixture, &client) {
        return;
    }
    for kind in MemoKind::ALL {
        let (name, held) = (fixture.name("kind"), fixture.request());
        let grant = client.holds(&name, &held).await;
        let write = MemoWrite { kind, ..first_write(&held, grant.token, "kept") };
        let version = writes(&client, &name, &write).await;
        assert_eq!(reads(&client, &name).await.kind, kind);
        for other in MemoKind::ALL.into_iter().filter(|other| *other != kind) {
            let answer =
                client.write_memo(&name, &MemoWrite { kind: other, ..next_write(&write, version, "other") }).await;
            assert_eq!(answer, MemoWritten::OtherKind(kind));
        }
        assert_eq!(&*reads(&client, &name).await.bytes, b"kept");
    }
}

/// A memo outlives the claims of its name, and what the store does with names that nobody uses.
pub async fn a_memo_outlives_the_claims_of_its_name(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let ttl = fixture.ttl_short(&client.capabilities());
    let (name, held) = (fixture.name("outlives"), ClaimRequest { ttl, ..fixture.request() });
    let grant = client.holds(&name, &held).await;
    let version = writes(&client, &name, &first_write(&held, grant.token, "stays")).await;
    // Its writer dies: nobody releases.
    fixture.pass(ttl * 2).await;
    let (busy, next) = (fixture.name("busy"), fixture.request());
    other.holds(&busy, &next).await;
    other.releases(&busy, &next).await;
    let memo = reads(&other, &name).await;
    assert_eq!((memo.token, memo.version, &*memo.bytes), (grant.token, version, &b"stays"[..]));
    let following = other.holds(&name, &next).await;
    assert!(following.token > grant.token, "{following:?} after {grant:?}");
    writes(&other, &name, &MemoWrite { after: version, ..first_write(&next, following.token, "goes on") }).await;
}

/// A memo ends when its time to be kept is over, and the next is written over none.
pub async fn a_memo_ends_when_its_time_to_be_kept_is_over(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    if has_no_memos(fixture, &client) {
        return;
    }
    let keep = fixture.ttl_short(&client.capabilities());
    let (name, held) = (fixture.name("keep"), fixture.request());
    let grant = client.holds(&name, &held).await;
    let short = MemoWrite { keep: Some(keep), ..first_write(&held, grant.token, "for a while") };
    let version = writes(&client, &name, &short).await;
    for _ in 0..LOOKS_MAX {
        let Some(memo) = other.memo(&name).await else { break };
        assert_eq!((memo.version, &*memo.bytes), (version, &b"for a while"[..]));
        fixture.pass(keep / 4).await;
    }
    assert_eq!(other.memo(&name).await, None, "it has ended");
    let kept = MemoWrite { kind: MemoKind::Once, ..first_write(&held, grant.token, "another") };
    let following = writes(&client, &name, &kept).await;
    assert_ne!(following, version, "no version comes again");
    assert_eq!(&*reads(&other, &name).await.bytes, b"another");
}

/// A name without a memo has none, held or not.
pub async fn a_name_without_a_memo_has_none(fixture: &Fixture) {
    let client = fixture.client().await;
    if has_no_memos(fixture, &client) {
        return;
    }
    let name = fixture.name("none");
    assert_eq!(client.memo(&name).await, None);
    client.holds(&name, &fixture.request()).await;
    assert_eq!(client.memo(&name).await, None);
}

/// The store tells the time, and it passes.
pub async fn the_store_tells_the_time(fixture: &Fixture) {
    let client = fixture.client().await;
    if fixture.lacks(&client, "time", |c| c.time) {
        return;
    }
    let before = client.time().await;
    // Some tell whole seconds.
    fixture.pass(Duration::from_millis(2_100)).await;
    let passed = client.time().await.duration_since(before).expect("it does not go back");
    assert!((Duration::from_secs(1)..Duration::from_secs(3600)).contains(&passed), "{passed:?}");
}
