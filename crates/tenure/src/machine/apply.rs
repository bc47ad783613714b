//! The rule.

use std::sync::Arc;
use std::time::Duration;

use super::claim::{BreakMark, Claim, Grant, Queue, SKIP_WINDOW, SKIPS_MAX, Shape};
use super::op::{Applied, ClaimRequest, Granted, Op, Outcome, Place, Refusal, Standing};
use crate::clock::Moment;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// Applies one operation to the state of one name.
///
/// `now` is the store's time; `floor` the lowest token that may be given (the store's wall clock in
/// microseconds). Claims that have died are removed first, whatever the operation; whoever then fits
/// at the front is granted.
pub fn apply(queue: &mut Queue, op: Op, now: Moment, floor: u64) -> Applied {
    apply_reaching(queue, op, now, floor, |_| true)
}

/// Like [`apply`], for stores that can tell whether a client hears: a claim that would be granted
/// though nobody hears it is first moved behind the next waiter that is heard, at most
/// [`SKIPS_MAX`] times and never with `strict`. If no waiter is heard it is granted all the same.
pub fn apply_reaching(
    queue: &mut Queue,
    op: Op,
    now: Moment,
    floor: u64,
    mut hears: impl FnMut(&Claim) -> bool,
) -> Applied {
    // Whoever asks is there to hear the answer.
    let own = match &op {
        Op::Claim(request) => [Some(request.id), None],
        Op::Renew { id, .. } | Op::Release { id, .. } => [Some(*id), None],
        Op::NextBlock { id, next, .. } => [Some(*id), Some(next.id)],
        Op::Break { .. } | Op::BreakWaiter { .. } | Op::Skip { .. } => [None, None],
    };
    let mut turn =
        Turn { now, floor, hears: |claim: &Claim| own.contains(&Some(claim.id)) || hears(claim), grants: Vec::new() };
    if queue.sweep_at <= now {
        sweep(queue, now);
        turn.promote(queue);
    }
    let outcome = match op {
        Op::Claim(request) => claim(queue, request, now, floor),
        Op::Renew { id, ttl, number } => renew_meant(queue, id, ttl, number, now),
        Op::Release { id, number, waiting_only } => release(queue, id, number, waiting_only),
        Op::NextBlock { id, block_end, next } => next_block(queue, id, block_end, next, &mut turn),
        Op::Break { owner, up_to, by, reason } => break_holders(queue, owner.as_ref(), up_to, (&by, &reason), now),
        Op::BreakWaiter { id, number, by, reason } => break_waiter(queue, (id, number), (by, reason), now),
        Op::Skip { id, behind } => skip(queue, id, behind),
    };
    if matches!(outcome, Outcome::Released | Outcome::Evicted(_) | Outcome::WaiterEnded { .. } | Outcome::Done) {
        turn.promote(queue);
    }
    let mut grants = turn.grants;
    // A claim may hear of its grant in the answer to its own renewal; telling it twice is waste.
    if let Outcome::Stands(standing) | Outcome::Moved(standing) = &outcome {
        grants.retain(|granted| granted.number != standing.number);
    }
    // Granted when the dead were swept and ended by this very operation: it must not hear of a grant
    // after its end.
    grants.retain(|granted| queue.holders().any(|held| held.number == granted.number));
    Applied { outcome, grants }
}

/// One operation under way: when it happens, who hears, who was granted by it.
struct Turn<H> {
    now: Moment,
    floor: u64,
    hears: H,
    grants: Vec<Granted>,
}

impl<H: FnMut(&Claim) -> bool> Turn<H> {
    /// Grants the claims at the front that fit, then the waiters that re-enter with them.
    fn promote(&mut self, queue: &mut Queue) {
        let mut holders = queue.holders().count();
        while let Some(head) = queue.claims.get(holders) {
            if !fits(queue, holders, &head.owner, head.shape) {
                break;
            }
            // Each time round here raises one claim's `skipped`, which is bounded.
            if let Some((deaf, behind)) = self.deaf_front(queue, holders) {
                move_behind(queue, holders, deaf, behind);
                continue;
            }
            let grant = new_grant(queue, holders, self.now, self.floor);
            grant_at(queue, holders, grant, &mut self.grants);
            holders += 1;
            holders = re_enter_waiters(queue, holders, self.now, &mut self.grants);
        }
    }

    /// How many waiters from `head` on nobody hears and may be passed over, and where the first behind them stands
    /// that is heard. None if the head is not to be passed over.
    fn deaf_front(&mut self, queue: &Queue, head: usize) -> Option<(usize, usize)> {
        let window = || queue.claims.iter().enumerate().skip(head).take(SKIP_WINDOW);
        let mut deaf = 0;
        for (_, claim) in window() {
            if claim.strict || claim.skipped >= SKIPS_MAX || (self.hears)(claim) {
                break;
            }
            deaf += 1;
        }
        let (behind, _) = window().skip(deaf).find(|(_, claim)| (self.hears)(claim))?;
        (deaf > 0).then_some((deaf, behind))
    }
}

/// Moves `count` claims from `from` on behind the one at `to`, in order.
fn move_behind(queue: &mut Queue, from: usize, count: usize, to: usize) {
    for _ in 0..count {
        if let Some(mut claim) = queue.claims.remove(from) {
            claim.skipped += 1;
            queue.claims.insert(to, claim);
        }
    }
}

/// Removes what has died.
fn sweep(queue: &mut Queue, now: Moment) {
    queue.claims.retain(|claim| claim.expires > now);
    queue.marks.retain(|mark| mark.until > now);
    queue.prepare();
}

/// Lets in the waiters whose owner has just been granted: they would re-enter if they asked now, and
/// waiting for their own owner could last for ever.
fn re_enter_waiters(queue: &mut Queue, mut holders: usize, now: Moment, grants: &mut Vec<Granted>) -> usize {
    let Some(newest) = holders.checked_sub(1).and_then(|index| queue.claims.get(index)) else { return holders };
    if newest.solo {
        return holders;
    }
    let (owner, shape, grant) = (newest.owner.clone(), newest.shape, newest.grant);
    let mut index = holders;
    while let Some(waiter) = queue.claims.get(index) {
        if waiter.owner == owner && shape.covers(waiter.shape) {
            let re_entry = grant.map(|grant| Grant { at: now, block_end: grant.token, ..grant });
            if let (Some(claim), Some(re_entry)) = (queue.claims.remove(index), re_entry) {
                queue.claims.insert(holders, claim);
                grant_at(queue, holders, re_entry, grants);
                holders += 1;
            }
        }
        index += 1;
    }
    holders
}

fn grant_at(queue: &mut Queue, index: usize, grant: Grant, grants: &mut Vec<Granted>) {
    if let Some(claim) = queue.claims.get_mut(index) {
        claim.grant = Some(grant);
        grants.push(Granted { id: claim.id, inbox: claim.inbox.clone(), grant, number: claim.number });
    }
}

/// A fresh token, or block of tokens, for the claim at `index`.
fn new_grant(queue: &mut Queue, index: usize, now: Moment, floor: u64) -> Grant {
    let block = queue.claims.get(index).map_or(1, |claim| claim.block.max(1));
    take_tokens(queue, block, now, floor)
}

fn take_tokens(queue: &mut Queue, block: u32, now: Moment, floor: u64) -> Grant {
    let token = Token(queue.last.0.saturating_add(1).max(floor));
    let block_end = Token(token.0.saturating_add(u64::from(block.max(1)) - 1));
    queue.last = block_end;
    Grant { token, block_end, at: now }
}

/// Whether this owner may take this shape within what `held` holds.
pub(super) fn re_enterable(held: &Claim, owner: &Owner, shape: Shape) -> bool {
    held.owner == *owner && held.shape.covers(shape) && !held.solo
}

/// Whether a claim of this owner and shape fits beside the first `holders` claims.
pub(super) fn fits(queue: &Queue, holders: usize, owner: &Owner, shape: Shape) -> bool {
    let mut held = queue.claims.iter().take(holders);
    match shape {
        Shape::Exclusive => holders == 0 || held.any(|h| re_enterable(h, owner, shape)),
        Shape::Shared => {
            held.all(|h| h.shape == Shape::Shared)
                || queue.claims.iter().take(holders).any(|h| re_enterable(h, owner, shape))
        }
        Shape::Permits { units, of } => {
            let taken: u64 = held.map(|h| u64::from(h.shape.units())).sum();
            taken + u64::from(units) <= u64::from(of)
        }
    }
}

fn claim(queue: &mut Queue, request: ClaimRequest, now: Moment, floor: u64) -> Outcome {
    if let Some(index) = queue.position(request.id) {
        return repeat(queue, index, &request, now, floor);
    }
    if queue.claims.is_empty() && !request.presumed.is_zero() {
        presume_holder(queue, &request, now, floor);
    }
    if let Some(refusal) = refuse(queue, &request) {
        return Outcome::Refused(refusal);
    }
    let holders = queue.holders().count();
    let re_entered = queue
        .claims
        .iter()
        .take(holders)
        .find(|held| re_enterable(held, &request.owner, request.shape))
        .and_then(|held| held.grant);
    let nobody_waits = queue.claims.len() == holders;
    let at_once = re_entered.is_some() || (nobody_waits && fits(queue, holders, &request.owner, request.shape));
    if !at_once && !request.queue {
        return Outcome::Busy(place(queue, queue.claims.len(), now));
    }
    let index = if re_entered.is_some() { holders } else { queue.claims.len() };
    append(queue, index, request, now, floor);
    if at_once {
        let grant = match re_entered {
            Some(outer) => Grant { at: now, block_end: outer.token, ..outer },
            None => new_grant(queue, index, now, floor),
        };
        if let Some(claim) = queue.claims.get_mut(index) {
            claim.grant = Some(grant);
        }
    }
    standing_at(queue, index, now).map_or(Outcome::Gone, Outcome::Stands)
}

/// Somebody held this name when the one who asks last looked, and the store has lost it since. Its lease may
/// still be trusted by it, so it is taken to hold until then.
fn presume_holder(queue: &mut Queue, request: &ClaimRequest, now: Moment, floor: u64) {
    let shape = match request.shape {
        Shape::Permits { of, .. } => Shape::Permits { units: of, of },
        Shape::Exclusive | Shape::Shared => Shape::Exclusive,
    };
    let ghost = ClaimRequest {
        id: ClaimId(request.id.0 >> 24 | 0xffff_ff00_0000_0000),
        owner: Owner::unknown(),
        label: "a holder the store has lost".into(),
        shape,
        ttl: request.presumed,
        block: 1,
        inbox: "".into(),
        within: Vec::new(),
        reenter: None,
        solo: true,
        strict: false,
        attempt: 0,
        ..request.clone()
    };
    append(queue, 0, ghost, now, floor);
    let grant = new_grant(queue, 0, now, floor);
    if let Some(claim) = queue.claims.get_mut(0) {
        claim.grant = Some(grant);
    }
}

/// The same claim id again: the same answer, and a renewal. Another attempt with the id takes it over: the
/// news goes there from now on, and the attempt before can no longer end it.
fn repeat(queue: &mut Queue, index: usize, request: &ClaimRequest, now: Moment, floor: u64) -> Outcome {
    if let Some(claim) = queue.claims.get(index)
        && (claim.shape != request.shape || claim.owner != request.owner)
    {
        return Outcome::Refused(Refusal::Mixed { live: claim.shape, asked: request.shape });
    }
    let number = queue.last_number.saturating_add(1).max(floor);
    if let Some(claim) = queue.claims.get_mut(index) {
        if claim.attempt != request.attempt {
            claim.attempt = request.attempt;
            claim.number = number;
            queue.last_number = number;
        }
        claim.inbox = request.inbox.clone();
    }
    renew(queue, request.id, request.ttl, now)
}

pub(super) fn refuse(queue: &Queue, request: &ClaimRequest) -> Option<Refusal> {
    let asked = request.shape;
    if let Shape::Permits { units, of } = asked
        && (units == 0 || units > of)
    {
        return Some(Refusal::Units { asked });
    }
    if let Some(token) = request.reenter {
        let holds = queue.holders().any(|held| {
            held.owner == request.owner && held.grant.is_some_and(|g| g.token <= token && token <= g.block_end)
        });
        if !holds {
            return Some(Refusal::NotHeld);
        }
    }
    let oldest = queue.claims.front()?;
    if !oldest.shape.mixes_with(asked) {
        return Some(Refusal::Mixed { live: oldest.shape, asked });
    }
    let mut held = queue.holders().filter(|held| held.owner == request.owner).peekable();
    if held.peek()?.solo {
        return Some(Refusal::NotSession);
    }
    match asked {
        Shape::Permits { .. } => Some(Refusal::PermitsWithinPermits),
        _ if held.any(|held| held.shape.covers(asked)) => None,
        _ => Some(Refusal::Upgrade),
    }
}

fn append(queue: &mut Queue, index: usize, request: ClaimRequest, now: Moment, floor: u64) {
    if queue.claims.capacity() == 0 {
        // Most names have one claim at a time.
        queue.claims.reserve_one();
    }
    // Used again after a break: what is told of the id from now on is about this claim.
    queue.marks.retain(|mark| mark.claim != request.id);
    let number = queue.last_number.saturating_add(1).max(floor);
    queue.last_number = number;
    let expires = now + request.ttl;
    queue.sweep_at =
        if queue.claims.is_empty() && queue.marks.is_empty() { expires } else { queue.sweep_at.min(expires) };
    queue.claims.insert(
        index,
        Claim {
            id: request.id,
            number,
            owner: request.owner,
            label: request.label,
            shape: request.shape,
            ttl: request.ttl,
            expires,
            appended: now,
            grant: None,
            block: request.block,
            strict: request.strict,
            skipped: 0,
            inbox: request.inbox,
            solo: request.solo,
            attempt: request.attempt,
            within: request.within,
        },
    );
}

fn renew(queue: &mut Queue, id: ClaimId, ttl: Duration, now: Moment) -> Outcome {
    let Some(index) = queue.position(id) else { return missing(queue, id) };
    if let Some(claim) = queue.claims.get_mut(index) {
        claim.ttl = claim.ttl.max(ttl);
        claim.expires = claim.expires.max(now + claim.ttl);
    }
    standing_at(queue, index, now).map_or(Outcome::Gone, Outcome::Stands)
}

/// One that names another number than the claim has changes nothing.
fn renew_meant(queue: &mut Queue, id: ClaimId, ttl: Duration, number: Option<u64>, now: Moment) -> Outcome {
    let Some(index) = queue.position(id) else { return missing(queue, id) };
    let is_meant = |claim: &Claim| number.is_none_or(|number| number == claim.number);
    if queue.claims.get(index).is_some_and(is_meant) {
        return renew(queue, id, ttl, now);
    }
    standing_at(queue, index, now).map_or(Outcome::Gone, Outcome::Stands)
}

fn missing(queue: &Queue, id: ClaimId) -> Outcome {
    let mark = queue.marks.iter().find(|mark| mark.claim == id);
    mark.map_or(Outcome::Gone, |mark| Outcome::Broken(mark.clone()))
}

fn release(queue: &mut Queue, id: ClaimId, number: Option<u64>, waiting_only: bool) -> Outcome {
    let is_meant = |claim: &Claim| number.is_none_or(|number| number == claim.number);
    let Some(index) = queue.position(id) else { return missing(queue, id) };
    match queue.claims.get(index).filter(|claim| is_meant(claim)) {
        Some(claim) if waiting_only && claim.grant.is_some() => Outcome::Holds,
        Some(_) => {
            queue.claims.remove(index);
            Outcome::Released
        }
        None => missing(queue, id),
    }
}

fn next_block(
    queue: &mut Queue,
    id: ClaimId,
    block_end: Token,
    next: ClaimRequest,
    turn: &mut Turn<impl FnMut(&Claim) -> bool>,
) -> Outcome {
    let (now, floor) = (turn.now, turn.floor);
    let Some(index) = queue.position(id) else {
        // Ended already: by an earlier copy of this request, which appended `next`, or otherwise.
        return match queue.position(next.id) {
            Some(_) => match renew(queue, next.id, next.ttl, now) {
                Outcome::Stands(standing) => Outcome::Moved(standing),
                other => other,
            },
            None => missing(queue, id),
        };
    };
    let current = queue.claims.get(index).and_then(|claim| claim.grant).is_some_and(|g| g.block_end == block_end);
    if !current {
        return renew(queue, id, Duration::ZERO, now);
    }
    let anyone_waits = queue.waiters().next().is_some();
    if !anyone_waits {
        let grant = take_tokens(queue, next.block, now, floor);
        if let Some(claim) = queue.claims.get_mut(index) {
            claim.grant = Some(grant);
        }
        return renew(queue, id, Duration::ZERO, now);
    }
    queue.claims.remove(index);
    let tail = queue.claims.len();
    let next_id = next.id;
    if queue.position(next_id).is_some() {
        renew(queue, next_id, next.ttl, now);
    } else {
        append(queue, tail, next, now, floor);
    }
    turn.promote(queue);
    standing(queue, next_id, now).map_or(Outcome::Gone, Outcome::Moved)
}

fn break_holders(
    queue: &mut Queue,
    owner: Option<&Owner>,
    up_to: Option<Token>,
    (by, reason): (&Arc<str>, &Arc<str>),
    now: Moment,
) -> Outcome {
    let mut evicted = Vec::new();
    let marks = &mut queue.marks;
    queue.claims.retain(|claim| {
        let is_meant = |grant: &Grant| {
            owner.is_none_or(|owner| *owner == claim.owner) && up_to.is_none_or(|token| grant.token <= token)
        };
        let Some(grant) = claim.grant.filter(is_meant) else { return true };
        // The evicted holder asks again within a ttl, or is dead.
        let until = claim.expires.max(now + claim.ttl);
        marks.push(BreakMark { claim: claim.id, by: by.clone(), reason: reason.clone(), until });
        evicted.push(Granted { id: claim.id, inbox: claim.inbox.clone(), grant, number: claim.number });
        false
    });
    if evicted.is_empty() { Outcome::Gone } else { Outcome::Evicted(evicted) }
}

fn break_waiter(
    queue: &mut Queue,
    (id, number): (ClaimId, u64),
    (by, reason): (Arc<str>, Arc<str>),
    now: Moment,
) -> Outcome {
    let index = queue.position(id);
    let meant = index.and_then(|index| queue.claims.get(index)).filter(|claim| claim.number == number);
    let (Some(index), Some(claim)) = (index, meant) else { return missing(queue, id) };
    if claim.grant.is_some() {
        return Outcome::Holds;
    }
    // Its client asks again within a ttl, or is dead.
    let until = claim.expires.max(now + claim.ttl);
    let inbox = claim.inbox.clone();
    queue.marks.push(BreakMark { claim: id, by, reason, until });
    queue.claims.remove(index);
    Outcome::WaiterEnded { id, inbox, number }
}

fn skip(queue: &mut Queue, id: ClaimId, behind: ClaimId) -> Outcome {
    let (Some(from), Some(to)) = (queue.position(id), queue.position(behind)) else { return Outcome::Gone };
    let waits = |index: usize| queue.claims.get(index).is_some_and(|claim| claim.grant.is_none());
    let skippable = queue.claims.get(from).is_some_and(|claim| !claim.strict && claim.skipped < SKIPS_MAX);
    if from >= to || !skippable || !waits(from) || !waits(to) {
        return Outcome::Gone;
    }
    move_behind(queue, from, 1, to);
    Outcome::Done
}

pub(super) fn standing(queue: &Queue, id: ClaimId, now: Moment) -> Option<Standing> {
    standing_at(queue, queue.position(id)?, now)
}

fn standing_at(queue: &Queue, index: usize, now: Moment) -> Option<Standing> {
    let claim = queue.claims.get(index)?;
    let state = claim.grant.ok_or_else(|| place(queue, index, now));
    Some(Standing { number: claim.number, ttl: claim.ttl, state })
}

/// The place at `index` of the queue.
pub(super) fn place(queue: &Queue, index: usize, now: Moment) -> Place {
    let holders = queue.holders().count();
    let first_to_die = queue.holders().min_by_key(|held| held.expires);
    Place {
        ahead: index,
        waiters_ahead: index.saturating_sub(holders),
        holder: queue.claims.front().map_or_else(|| "nobody".into(), |claim| claim.label.clone()),
        holder_expires_in: first_to_die.map_or(Duration::ZERO, |held| held.expires.since(now)),
        holder_ttl: queue.holders().map(|held| held.ttl).max().unwrap_or_default(),
    }
}
