//! The rule of memos: who may write one, over which version.

use std::sync::Arc;
use std::time::Duration;

use super::claim::{Claim, Queue, Shape};
use crate::clock::{Moment, micros};
use crate::memo::{Memo, MemoKind, MemoWrite, MemoWritten};
use crate::token::Token;

/// A memo as a store keeps it. Times are microseconds of the store's wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoRecord {
    /// Who keeps it there.
    pub kind: MemoKind,
    /// The token it was written under.
    pub token: Token,
    /// Its version.
    pub version: u64,
    /// The id of the write.
    pub write: u64,
    /// When it was written.
    pub written: u64,
    /// When it ends.
    pub until: Option<u64>,
    /// What was written.
    pub bytes: Arc<[u8]>,
}

impl MemoRecord {
    /// Whether it has ended.
    pub fn is_over(&self, wall: u64) -> bool {
        self.until.is_some_and(|until| until <= wall)
    }

    /// What a reader sees of it.
    pub fn seen(&self, wall: u64) -> Option<Memo> {
        let age = Duration::from_micros(wall.saturating_sub(self.written));
        (!self.is_over(wall)).then(|| Memo::new(self.kind, self.token, self.version, age, self.bytes.clone()))
    }
}

/// Writes a memo. `now` is the store's time that claims expire by, `wall` its wall clock, and `floor` above every
/// version of a memo of this name that the store has forgotten. On [`MemoWritten::Done`] the memo is as it is to be
/// kept.
///
/// The id of the last write is looked at first: a copy of it that comes late is answered as it was, whoever holds by
/// then.
pub fn write_memo(
    queue: Option<&Queue>,
    memo: &mut Option<MemoRecord>,
    write: &MemoWrite,
    now: Moment,
    (wall, floor): (u64, u64),
) -> MemoWritten {
    if let Some(present) = memo.as_ref().filter(|present| present.write == write.write) {
        return MemoWritten::Done { version: present.version };
    }
    if !queue.is_some_and(|queue| may_write(queue, write, now)) {
        return MemoWritten::NotHolder;
    }
    let present = memo.as_ref().filter(|memo| !memo.is_over(wall));
    if let Some(present) = present.filter(|present| present.kind != write.kind) {
        return MemoWritten::OtherKind(present.kind);
    }
    if present.map_or(0, |present| present.version) != write.after {
        return MemoWritten::Changed(present.and_then(|present| present.seen(wall)));
    }
    let last = memo.as_ref().map_or(0, |memo| memo.version);
    let version = last.saturating_add(1).max(wall).max(floor);
    *memo = Some(MemoRecord {
        kind: write.kind,
        token: write.token,
        version,
        write: write.write,
        written: wall,
        until: write.keep.map(|keep| wall.saturating_add(micros(keep))),
        bytes: write.bytes.clone(),
    });
    MemoWritten::Done { version }
}

/// Whether the claim holds the name exclusively with that token.
fn may_write(queue: &Queue, write: &MemoWrite, now: Moment) -> bool {
    let has_token = |claim: &&Claim| claim.grant.is_some_and(|g| g.token <= write.token && write.token <= g.block_end);
    let is_meant = |held: &Claim| held.id == write.id && write.number.is_none_or(|number| number == held.number);
    let mut holders = queue.holders().filter(|held| is_meant(held) && held.expires > now);
    holders.find(has_token).is_some_and(|held| held.shape == Shape::Exclusive)
}

#[cfg(test)]
mod tests {
    use super::super::op::{ClaimRequest, Op};
    use super::super::{Outcome, apply};
    use super::*;
    use crate::owner::{ClaimId, Owner};

    const NOW: Moment = Moment(1_000_000);
    const WALL: u64 = 5_000_000;
    const TTL: Duration = Duration::from_secs(10);

    fn request(id: u64, shape: Shape) -> ClaimRequest {
        ClaimRequest {
            id: ClaimId(id),
            owner: Owner::new(format!("owner{id}")).unwrap(),
            label: "label".into(),
            shape,
            ttl: TTL,
            queue: true,
            block: 4,
            strict: false,
            inbox: "".into(),
            within: Vec::new(),
            reenter: None,
            solo: false,
            attempt: 0,
            presumed: Duration::ZERO,
        }
    }

    /// A queue in which the claim 1 holds and the claim 2 waits, and the token of the first.
    fn queue(shape: Shape) -> (Queue, Token) {
        let mut queue = Queue::new(0);
        let granted = apply(&mut queue, Op::Claim(request(1, shape)), NOW, 100);
        apply(&mut queue, Op::Claim(request(2, Shape::Exclusive)), NOW, 100);
        let Outcome::Stands(standing) = granted.outcome else { panic!("{granted:?}") };
        (queue, standing.state.unwrap().token)
    }

    fn write(id: u64, token: Token, after: u64, write: u64) -> MemoWrite {
        let owner = Owner::new(format!("owner{id}")).unwrap();
        let (kind, bytes) = (MemoKind::User, Arc::from(&b"x"[..]));
        MemoWrite { id: ClaimId(id), owner, number: None, token, after, write, kind, keep: None, bytes }
    }

    #[test]
    fn only_the_exclusive_holder_writes_and_only_with_a_token_of_its_block() {
        let (held, token) = queue(Shape::Exclusive);
        let last = Token(token.0 + 3);
        let number = held.holders().next().unwrap().number;
        let cases = [
            (write(1, token, 0, 9), NOW, true),
            (write(1, last, 0, 9), NOW, true),
            (write(1, Token(last.0 + 1), 0, 9), NOW, false),
            (write(1, Token(token.0 - 1), 0, 9), NOW, false),
            (write(2, token, 0, 9), NOW, false),
            (write(3, token, 0, 9), NOW, false),
            (write(1, token, 0, 9), NOW + TTL, false),
            (MemoWrite { number: Some(number), ..write(1, token, 0, 9) }, NOW, true),
            (MemoWrite { number: Some(number + 1), ..write(1, token, 0, 9) }, NOW, false),
        ];
        for (write, now, accepted) in cases {
            let mut memo = None;
            let answer = write_memo(Some(&held), &mut memo, &write, now, (WALL, 0));
            assert_eq!(matches!(answer, MemoWritten::Done { .. }), accepted, "{write:?}: {answer:?}");
            assert_eq!(memo.is_some(), accepted, "{write:?}");
        }
        let (shared, token) = queue(Shape::Shared);
        for queue in [Some(&shared), None] {
            let answer = write_memo(queue, &mut None, &write(1, token, 0, 9), NOW, (WALL, 0));
            assert_eq!(answer, MemoWritten::NotHolder);
        }
    }

    #[test]
    fn no_version_comes_again_whatever_the_wall_clock_does() {
        let (held, token) = queue(Shape::Exclusive);
        let mut memo = None;
        let mut versions = Vec::new();
        for (number, wall) in [WALL, WALL, WALL - 1_000, WALL + 7].into_iter().enumerate() {
            let after = versions.last().copied().unwrap_or(0);
            let number = u64::try_from(number).unwrap();
            let answer = write_memo(Some(&held), &mut memo, &write(1, token, after, number), NOW, (wall, 0));
            let MemoWritten::Done { version } = answer else { panic!("{answer:?}") };
            versions.push(version);
        }
        assert_eq!(versions, [WALL, WALL + 1, WALL + 2, WALL + 7]);
        let answer = write_memo(Some(&held), &mut None, &write(1, token, 0, 77), NOW, (WALL, WALL + 100));
        assert_eq!(answer, MemoWritten::Done { version: WALL + 100 }, "above those that were forgotten");
    }

    #[test]
    fn a_memo_that_has_ended_is_none_but_its_write_is_known() {
        let (held, token) = queue(Shape::Exclusive);
        let mut memo = None;
        let first = MemoWrite { keep: Some(Duration::from_secs(1)), ..write(1, token, 0, 1) };
        let MemoWritten::Done { version } = write_memo(Some(&held), &mut memo, &first, NOW, (WALL, 0)) else {
            panic!()
        };
        let later = WALL + 1_000_000;
        assert!(memo.as_ref().unwrap().seen(later - 1).is_some());
        assert!(memo.as_ref().unwrap().seen(later).is_none());
        let again = write_memo(Some(&held), &mut memo, &first, NOW, (later, 0));
        assert_eq!(again, MemoWritten::Done { version }, "a late copy brings nothing back");
        assert!(memo.as_ref().unwrap().seen(later).is_none());
        let other = MemoWrite { kind: MemoKind::Once, ..write(1, token, 0, 2) };
        let answer = write_memo(Some(&held), &mut memo, &other, NOW, (later, 0));
        assert!(matches!(answer, MemoWritten::Done { version: next } if next > version), "{answer:?}");
    }
}
