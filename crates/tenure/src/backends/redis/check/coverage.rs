//! Histories are only worth something if they reach every corner: this counts what they do.

use std::collections::BTreeMap;

use crate::clock::Moment;
use crate::machine::{Applied, Op, Outcome, Queue, Refusal};
use crate::owner::Owner;

/// What must be met, and the least number of times in a run of the usual length.
const CORNERS: &[&str] = &[
    "claim: granted at once",
    "claim: waits",
    "claim: re-enters",
    "claim: the same again",
    "claim: another attempt",
    "claim: busy",
    "claim: of a free name with a last token",
    "claim: drops its mark",
    "claim: presumes a holder",
    "refused: mixed",
    "refused: upgrade",
    "refused: permits within permits",
    "refused: not held",
    "refused: outside a session",
    "renew: stands",
    "renew: of a longer ttl",
    "renew: gone",
    "renew: told of the break",
    "release: done",
    "release: done while it waits",
    "release: it holds",
    "release: gone",
    "release: told of the break",
    "block: given",
    "block: stale",
    "block: moved",
    "block: gone",
    "block: told of the break",
    "break: ended some",
    "break: ended some up to a token",
    "break: leaves who was granted later",
    "break: found nobody",
    "break: ended a waiter",
    "break: the waiter holds",
    "break: found no waiter",
    "sweep: somebody died",
    "sweep: the dead make room",
    "sweep: makes room for the one who asks",
    "skip: a deaf claim is passed over",
    "skip: a deaf claim is granted all the same",
    "several are granted",
    "waiters re-enter",
    "one claim becomes a queue",
    "a queue becomes free",
    "a call of several operations",
    "a call with a name twice",
    "a call that begins with releases",
    "a call that begins with releases of one name",
    "a state compared",
    "memo: written by the only claim",
    "memo: written by the holder of a queue",
    "memo: written over one that has ended",
    "memo: the same again",
    "memo: the same again after its end",
    "memo: the same again by an earlier holder",
    "memo: changed",
    "memo: there is none",
    "memo: of another kind",
    "memo: by nobody's claim",
    "memo: by a dead claim",
    "memo: by a waiter",
    "memo: by a claim that is not exclusive",
    "memo: with a token of no present block",
    "memo: with another number",
];
const LEAST: u64 = 10;

#[derive(Debug, Default)]
pub(super) struct Coverage {
    counts: BTreeMap<&'static str, u64>,
    pub(super) histories: u64,
    /// Histories that were left because a claim died too near to an operation.
    pub(super) spoiled: u64,
    pub(super) steps: u64,
}

/// One operation as the machine did it.
pub(super) struct Seen<'a> {
    pub(super) before: &'a Queue,
    pub(super) op: &'a Op,
    pub(super) applied: &'a Applied,
    pub(super) after: &'a Queue,
    pub(super) now: Moment,
    /// The first letter of the record before.
    pub(super) record: u8,
}

impl Coverage {
    pub(super) fn plus(mut self, other: Self) -> Self {
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.histories += other.histories;
        self.spoiled += other.spoiled;
        self.steps += other.steps;
        self
    }

    pub(super) fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    /// The corners that were not met often enough.
    pub(super) fn rare(&self) -> Vec<&'static str> {
        CORNERS.iter().copied().filter(|kind| self.counts.get(kind).copied().unwrap_or(0) < LEAST).collect()
    }

    pub(super) fn assert_complete(&self, per_server: bool) {
        eprintln!("per server: {per_server} {self:#?}");
        let rare = self.rare();
        assert!(rare.is_empty(), "met too rarely: {rare:?}");
        let strange: Vec<_> = self.counts.keys().filter(|kind| !CORNERS.contains(kind)).collect();
        assert!(strange.is_empty(), "not expected at all: {strange:?}");
    }

    pub(super) fn note(&mut self, seen: &Seen<'_>) {
        self.steps += 1;
        self.count(outcome(seen));
        let Seen { before, op, applied, after, now, record } = seen;
        if let Op::Claim(request) = op {
            if *record == b'f' {
                self.count("claim: of a free name with a last token");
            }
            let marked = |queue: &Queue| queue.marks.iter().any(|mark| mark.claim == request.id && mark.until > *now);
            if marked(before) && !marked(after) {
                self.count("claim: drops its mark");
            }
            let ghosts = |queue: &Queue| queue.claims.iter().filter(|claim| claim.owner == Owner::unknown()).count();
            if ghosts(before) == 0 && ghosts(after) > 0 {
                self.count("claim: presumes a holder");
            }
        }
        if let Op::Renew { id, ttl, .. } = op
            && before.find(*id).is_some_and(|claim| claim.ttl < *ttl && claim.expires > *now)
        {
            self.count("renew: of a longer ttl");
        }
        if let Op::Break { up_to: Some(token), .. } = op
            && after.holders().any(|held| held.grant.is_some_and(|grant| grant.token > *token))
        {
            self.count("break: leaves who was granted later");
        }
        if before.claims.iter().any(|claim| claim.expires <= *now) {
            self.count("sweep: somebody died");
            if !applied.grants.is_empty() {
                self.count("sweep: the dead make room");
            }
            if let Outcome::Stands(standing) = &applied.outcome
                && standing.state.is_ok()
                && before.claims.iter().any(|claim| claim.number == standing.number && claim.grant.is_none())
            {
                self.count("sweep: makes room for the one who asks");
            }
        }
        self.note_grants(seen);
    }

    fn note_grants(&mut self, seen: &Seen<'_>) {
        let skipped = |queue: &Queue| queue.claims.iter().map(|claim| u64::from(claim.skipped)).sum::<u64>();
        if skipped(seen.after) > skipped(seen.before) {
            self.count("skip: a deaf claim is passed over");
        }
        let grants = &seen.applied.grants;
        if grants.iter().any(|granted| !super::lane::hears(&granted.inbox)) {
            self.count("skip: a deaf claim is granted all the same");
        }
        if grants.len() > 1 {
            self.count("several are granted");
        }
        if grants.windows(2).any(|pair| pair[0].grant.token == pair[1].grant.token) {
            self.count("waiters re-enter");
        }
    }
}

fn outcome(seen: &Seen<'_>) -> &'static str {
    let known = |id| seen.before.find(id).is_some_and(|claim| claim.expires > seen.now);
    match (&seen.applied.outcome, seen.op) {
        (Outcome::Stands(standing), Op::Claim(request)) if known(request.id) => {
            let number = seen.before.find(request.id).map(|claim| claim.number);
            if number == Some(standing.number) { "claim: the same again" } else { "claim: another attempt" }
        }
        (Outcome::Stands(standing), Op::Claim(_)) => match &standing.state {
            Err(_) => "claim: waits",
            Ok(grant) if grant.token <= seen.before.last => "claim: re-enters",
            Ok(_) => "claim: granted at once",
        },
        (Outcome::Busy(_), _) => "claim: busy",
        (Outcome::Refused(refusal), _) => match refusal {
            Refusal::Mixed { .. } => "refused: mixed",
            Refusal::Upgrade => "refused: upgrade",
            Refusal::PermitsWithinPermits => "refused: permits within permits",
            Refusal::NotHeld => "refused: not held",
            Refusal::NotSession => "refused: outside a session",
            Refusal::Units { .. } => "refused: units",
        },
        (Outcome::Stands(_), Op::Renew { .. }) => "renew: stands",
        (Outcome::Gone, Op::Renew { .. }) => "renew: gone",
        (Outcome::Broken(_), Op::Renew { .. }) => "renew: told of the break",
        (Outcome::Released, Op::Release { waiting_only: true, .. }) => "release: done while it waits",
        (Outcome::Released, _) => "release: done",
        (Outcome::Holds, Op::BreakWaiter { .. }) => "break: the waiter holds",
        (Outcome::Holds, _) => "release: it holds",
        (Outcome::Gone, Op::Release { .. }) => "release: gone",
        (Outcome::Broken(_), Op::Release { .. }) => "release: told of the break",
        (Outcome::Stands(standing), Op::NextBlock { .. }) => match &standing.state {
            Ok(grant) if grant.token > seen.before.last => "block: given",
            _ => "block: stale",
        },
        (Outcome::Moved(_), _) => "block: moved",
        (Outcome::Gone, Op::NextBlock { .. }) => "block: gone",
        (Outcome::Broken(_), Op::NextBlock { .. }) => "block: told of the break",
        (Outcome::Evicted(_), Op::Break { up_to: Some(_), .. }) => "break: ended some up to a token",
        (Outcome::Evicted(_), _) => "break: ended some",
        (Outcome::Gone, Op::Break { .. }) => "break: found nobody",
        (Outcome::WaiterEnded { .. }, _) => "break: ended a waiter",
        (Outcome::Gone | Outcome::Broken(_), Op::BreakWaiter { .. }) => "break: found no waiter",
        _ => "an outcome that no operation has",
    }
}
