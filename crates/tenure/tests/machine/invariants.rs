//! What must be true of every step, each as a check of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::clock::Moment;
use tenure::machine::{Applied, Claim, Grant, Op, Outcome, Queue, SKIPS_MAX, Shape, apply};
use tenure::{ClaimId, Owner, Token};

use crate::history::by_number;

/// One step: what was, what was asked, and what came of it.
pub(crate) struct Seen<'a> {
    pub(crate) before: &'a Queue,
    pub(crate) op: &'a Op,
    pub(crate) now: Moment,
    pub(crate) floor: u64,
    pub(crate) applied: &'a Applied,
    pub(crate) after: &'a Queue,
}

/// The state as stores keep it: what two queues must agree in to be the same.
pub(crate) fn stored(queue: &Queue) -> (u64, u64, Vec<Claim>, Vec<tenure::machine::BreakMark>) {
    (queue.last.0, queue.last_number, queue.claims.iter().cloned().collect(), queue.marks.clone())
}

/// What `before` is once the dead are swept and nothing else was asked.
pub(crate) fn swept(seen: &Seen<'_>) -> Queue {
    let mut queue = seen.before.clone();
    let nobody = ClaimId(u64::MAX);
    assert_eq!(
        apply(&mut queue, Op::Renew { id: nobody, ttl: Duration::ZERO, number: None }, seen.now, seen.floor).outcome,
        Outcome::Gone
    );
    queue
}

/// Every granted claim stands before every waiting one, and no claim stands twice.
pub(crate) fn holders_are_a_prefix(queue: &Queue) {
    assert_eq!(queue.holders().count(), queue.claims.iter().filter(|claim| claim.grant.is_some()).count());
    let ids: BTreeSet<_> = queue.claims.iter().map(|claim| claim.id).collect();
    let numbers: BTreeSet<_> = queue.claims.iter().map(|claim| claim.number).collect();
    assert_eq!((ids.len(), numbers.len()), (queue.claims.len(), queue.claims.len()), "each claim once");
}

/// Never more is granted than fits: permits up to their number, readers together, or one owner alone.
pub(crate) fn holders_fit_together(queue: &Queue) {
    let permits = |claim: &&Claim| matches!(claim.shape, Shape::Permits { .. });
    if let Some(Shape::Permits { of, .. }) = queue.claims.front().map(|claim| claim.shape) {
        let alike = queue.claims.iter().all(|claim| matches!(claim.shape, Shape::Permits { of: n, .. } if n == of));
        assert!(alike, "another number or shape beside permits");
        assert!(queue.holders().map(|held| held.shape.units()).sum::<u32>() <= of, "more permits than there are");
        return;
    }
    assert!(!queue.claims.iter().any(|claim| permits(&claim)), "permits beside another shape");
    if queue.holders().any(|held| held.shape == Shape::Exclusive) {
        let owners: BTreeSet<_> = queue.holders().map(|held| held.owner.to_string()).collect();
        assert_eq!(owners.len(), 1, "an exclusive holder beside another owner");
    }
}

/// An expired claim never blocks: nothing dead remains, and a waiter that could hold does not wait.
pub(crate) fn nobody_waits_in_vain(queue: &Queue, now: Moment) {
    assert!(queue.claims.iter().all(|claim| claim.expires > now), "a dead claim");
    assert!(queue.marks.iter().all(|mark| mark.until > now), "a dead mark");
    for waiter in queue.waiters() {
        // It could re-enter, and what it waits for may never end: its owner may wait for it.
        let covers = |held: Shape| held == Shape::Exclusive || (held == Shape::Shared && waiter.shape == Shape::Shared);
        let for_itself = queue.holders().any(|held| held.owner == waiter.owner && covers(held.shape));
        assert!(!for_itself, "{waiter:?} waits for its own owner");
    }
    let Some(head) = queue.waiters().next() else { return };
    let fits = match head.shape {
        Shape::Exclusive => queue.holders().next().is_none(),
        Shape::Shared => queue.holders().all(|held| held.shape == Shape::Shared),
        Shape::Permits { units, of } => queue.holders().map(|held| held.shape.units()).sum::<u32>() + units <= of,
    };
    assert!(!fits, "the head of the waiters fits, and waits");
}

/// A waiter that neither expired, was passed over nor gave up is granted before any later claim, but for
/// claims that re-enter; and the waiters keep their order.
pub(crate) fn first_come_first_served(seen: &Seen<'_>) {
    let passed_over = |claim: &Claim| by_number(seen.after, claim.number).is_some_and(|c| c.skipped > claim.skipped);
    let still_waiting: Vec<&Claim> = seen
        .before
        .waiters()
        .filter(|claim| by_number(seen.after, claim.number).is_some_and(|c| c.grant.is_none()) && !passed_over(claim))
        .collect();
    for granted in newly_granted(seen).filter(|claim| !re_entered(seen, claim)) {
        let place = seen.before.claims.iter().position(|claim| claim.number == granted.number);
        for waiter in &still_waiting {
            let ahead = seen.before.claims.iter().position(|claim| claim.number == waiter.number);
            assert!(place.is_some_and(|place| Some(place) < ahead), "{granted:?} overtook {waiter:?}");
        }
    }
    let order: Vec<u64> = still_waiting.iter().map(|claim| claim.number).collect();
    let kept: Vec<u64> = seen.after.waiters().map(|claim| claim.number).filter(|n| order.contains(n)).collect();
    assert_eq!(order, kept, "the waiters keep their order");
}

/// Tokens strictly increase from holder to holder, a block is nobody else's, and a re-entry has its
/// holder's token. `highest` is the highest token anybody was given so far.
pub(crate) fn tokens_increase(seen: &Seen<'_>, highest: &mut u64) {
    let mut fresh: Vec<&Grant> = Vec::new();
    for claim in seen.after.holders() {
        let grant = claim.grant.as_ref().unwrap();
        let had = by_number(seen.before, claim.number).and_then(|claim| claim.grant);
        if had == Some(*grant) {
            continue;
        }
        if had.is_none() && re_enters(seen.after, claim) && grant.token.0 <= *highest {
            assert_eq!(grant.block_end, grant.token, "a re-entry reserves nothing");
            continue;
        }
        fresh.push(grant);
    }
    fresh.sort_by_key(|grant| grant.token);
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    for grant in fresh {
        if taken.get(&grant.token.0).is_some_and(|_| grant.block_end == grant.token) {
            continue; // a waiter of the same owner, let in with it
        }
        assert!(grant.token.0 > *highest, "{grant:?} after {highest}");
        assert!(grant.token.0 >= seen.floor, "{grant:?} below the floor {}", seen.floor);
        assert!(grant.block_end >= grant.token);
        taken.insert(grant.token.0, grant.block_end.0);
        *highest = grant.block_end.0;
    }
    assert!(seen.after.last.0 >= *highest, "the state knows its highest token");
}

/// Claims end for a reason: they died, or this operation was meant to end them.
pub(crate) fn claims_end_for_a_reason(seen: &Seen<'_>) {
    for ended in seen.before.claims.iter().filter(|claim| by_number(seen.after, claim.number).is_none()) {
        let meant = match seen.op {
            Op::Release { id, number, waiting_only } => {
                *id == ended.id
                    && number.is_none_or(|number| number == ended.number)
                    && !(*waiting_only && ended.grant.is_some())
            }
            Op::NextBlock { id, .. } => *id == ended.id && matches!(seen.applied.outcome, Outcome::Moved(_)),
            Op::Break { owner, up_to, .. } => is_to_break(ended, owner.as_ref(), *up_to),
            Op::BreakWaiter { id, number, .. } => *id == ended.id && *number == ended.number && ended.grant.is_none(),
            Op::Claim(_) | Op::Renew { .. } | Op::Skip { .. } => false,
        };
        assert!(meant || ended.expires <= seen.now, "{ended:?} was ended by {:?}", seen.op);
    }
}

/// An operation that answers that it did nothing did nothing but what sweeping does.
pub(crate) fn refusals_change_nothing(seen: &Seen<'_>) {
    if matches!(seen.applied.outcome, Outcome::Refused(_) | Outcome::Busy(_) | Outcome::Gone | Outcome::Broken(_)) {
        assert_eq!(stored(seen.after), stored(&swept(seen)), "{:?}", seen.applied.outcome);
    }
}

/// The ttl and the expiry of a claim never shrink, nor does its number of tokens or numbers.
pub(crate) fn nothing_shrinks(seen: &Seen<'_>) {
    assert!(seen.after.last >= seen.before.last && seen.after.last_number >= seen.before.last_number);
    for claim in &seen.before.claims {
        if let Some(later) = by_number(seen.after, claim.number) {
            assert!(later.ttl >= claim.ttl && later.expires >= claim.expires, "{claim:?} became {later:?}");
            assert!(later.grant.is_some() || claim.grant.is_none(), "a grant was taken back");
            assert_eq!((later.id, &later.owner, later.shape), (claim.id, &claim.owner, claim.shape));
        }
    }
}

/// Everybody who was granted is told, once, and nobody else: the one who asked by the answer.
pub(crate) fn grants_are_told(seen: &Seen<'_>) {
    let own = match &seen.applied.outcome {
        Outcome::Stands(standing) | Outcome::Moved(standing) => Some(standing.number),
        _ => None,
    };
    let granted: Vec<_> = newly_granted(seen).filter(|claim| Some(claim.number) != own).collect();
    let mut expected: Vec<_> = granted.iter().map(|c| (c.number, c.id, c.inbox.clone(), c.grant.unwrap())).collect();
    let mut told: Vec<_> = seen.applied.grants.iter().map(|g| (g.number, g.id, g.inbox.clone(), g.grant)).collect();
    expected.sort_by_key(|(number, ..)| *number);
    told.sort_by_key(|(number, ..)| *number);
    assert_eq!(told, expected);
}

/// The answer says how the claim stands in the state.
pub(crate) fn answers_tell_the_state(seen: &Seen<'_>) {
    let (Outcome::Stands(standing) | Outcome::Moved(standing)) = &seen.applied.outcome else { return };
    let claim = by_number(seen.after, standing.number).unwrap();
    let index = seen.after.claims.iter().position(|c| c.number == standing.number).unwrap();
    assert_eq!((standing.ttl, standing.state.as_ref().ok()), (claim.ttl, claim.grant.as_ref()));
    if let Err(place) = &standing.state {
        assert_eq!((place.ahead, place.waiters_ahead), (index, index - seen.after.holders().count()));
    }
}

/// A claim that is not to wait is granted at once or leaves nothing behind.
pub(crate) fn only_those_wait_that_may(seen: &Seen<'_>) {
    let Op::Claim(request) = seen.op else { return };
    for waiter in seen.after.waiters().filter(|claim| claim.id == request.id) {
        assert!(request.queue || by_number(seen.before, waiter.number).is_some(), "{waiter:?} waits");
    }
}

/// A request for the next block that does not name the present one, a late copy say, ends nothing and
/// gives nothing.
pub(crate) fn late_block_requests_change_nothing(seen: &Seen<'_>) {
    let Op::NextBlock { id, block_end, .. } = seen.op else { return };
    let present = swept(seen);
    let held = present.find(*id).and_then(|claim| claim.grant);
    if present.find(*id).is_some() && held.is_none_or(|grant| grant.block_end != *block_end) {
        let unrenewed = |queue: &Queue| {
            queue.claims.iter().map(|claim| (claim.number, claim.grant, claim.skipped)).collect::<Vec<_>>()
        };
        assert_eq!(unrenewed(seen.after), unrenewed(&present));
        assert_eq!(seen.after.last, present.last);
    }
}

/// The next block is given iff nobody waits; otherwise the request is the release, and `next` stands.
pub(crate) fn the_next_block_is_given_iff_nobody_waits(seen: &Seen<'_>) {
    let Op::NextBlock { id, block_end, next } = seen.op else { return };
    let present = swept(seen);
    let Some(held) = present.find(*id).filter(|held| held.grant.is_some_and(|grant| grant.block_end == *block_end))
    else {
        return;
    };
    if present.waiters().next().is_none() {
        let given = by_number(seen.after, held.number).and_then(|claim| claim.grant).unwrap();
        assert!(given.token > *block_end, "nobody waits, and the block was not given");
    } else {
        assert!(by_number(seen.after, held.number).is_none(), "it holds on though somebody waits");
        assert!(seen.after.find(next.id).is_some(), "the next task's claim is not there");
    }
}

/// A new claim of an owner that holds re-enters with its token, or is refused; and one that may only
/// re-enter does nothing else.
pub(crate) fn owners_that_hold_re_enter(seen: &Seen<'_>) {
    let (Op::Claim(request), Outcome::Stands(standing)) = (seen.op, &seen.applied.outcome) else { return };
    let present = swept(seen);
    if by_number(&present, standing.number).is_some() {
        return; // the same claim again
    }
    let held: Vec<_> = present.holders().filter(|held| held.owner == request.owner).collect();
    let tokens = |held: &&Claim| held.grant.map(|grant| grant.token.0..=grant.block_end.0).unwrap();
    if let Some(token) = request.reenter {
        assert!(held.iter().any(|held| tokens(held).contains(&token.0)), "let in with {token}");
    }
    if !held.is_empty() {
        assert!(!held.iter().any(|held| matches!(held.shape, Shape::Permits { .. })), "permits within permits");
        let covered = request.shape == Shape::Shared || held.iter().any(|held| held.shape == Shape::Exclusive);
        assert!(covered, "an upgrade");
        let granted = standing.state.as_ref().expect("an owner waits for itself");
        assert!(held.iter().any(|held| held.grant.unwrap().token == granted.token), "another token");
    }
}

fn is_to_break(held: &Claim, owner: Option<&Owner>, up_to: Option<Token>) -> bool {
    owner.is_none_or(|owner| *owner == held.owner)
        && up_to.is_none_or(|token| held.grant.is_some_and(|grant| grant.token <= token))
}

/// A claim that holds is not ended by a release of what waits, and one that waits is.
pub(crate) fn only_what_waits_is_released(seen: &Seen<'_>) {
    let Op::Release { id, number, waiting_only: true } = seen.op else { return };
    let before = swept(seen);
    let meant = before.find(*id).filter(|claim| number.is_none_or(|number| number == claim.number));
    match (&seen.applied.outcome, meant) {
        (Outcome::Holds, Some(claim)) => {
            assert!(claim.grant.is_some() && by_number(seen.after, claim.number).is_some(), "{claim:?}");
        }
        (Outcome::Released, Some(claim)) => assert!(claim.grant.is_none(), "{claim:?}"),
        (Outcome::Gone | Outcome::Broken(_), None) => {}
        (outcome, claim) => panic!("{outcome:?} for {claim:?}"),
    }
}

/// A break of a waiter ends exactly that claim, only while it waits, and it is told by whom and why.
pub(crate) fn only_what_waits_is_broken_as_a_waiter(seen: &Seen<'_>) {
    let Op::BreakWaiter { id, number, by, reason } = seen.op else { return };
    let before = swept(seen);
    let meant = before.find(*id).filter(|claim| claim.number == *number);
    match (&seen.applied.outcome, meant) {
        (Outcome::Holds, Some(claim)) => assert!(claim.grant.is_some(), "{claim:?}"),
        (Outcome::WaiterEnded { inbox, .. }, Some(claim)) => {
            assert!(claim.grant.is_none() && claim.inbox == *inbox, "{claim:?}");
            assert!(by_number(seen.after, *number).is_none());
            let told = apply(
                &mut seen.after.clone(),
                Op::Renew { id: *id, ttl: Duration::ZERO, number: None },
                seen.now,
                seen.floor,
            );
            let told = told.outcome;
            assert!(matches!(&told, Outcome::Broken(mark) if mark.by == *by && mark.reason == *reason), "{told:?}");
        }
        (Outcome::Gone | Outcome::Broken(_), None) => {}
        (outcome, claim) => panic!("{outcome:?} for {claim:?}"),
    }
}

/// A break ends exactly the holders it was meant for, and each of them is told by whom and why.
pub(crate) fn breaks_end_the_holders_asked_for(seen: &Seen<'_>) {
    let Op::Break { owner, up_to, by, reason } = seen.op else { return };
    let present = swept(seen);
    let mut meant: Vec<u64> =
        present.holders().filter(|held| is_to_break(held, owner.as_ref(), *up_to)).map(|held| held.number).collect();
    let mut ended: Vec<u64> = match &seen.applied.outcome {
        Outcome::Evicted(evicted) => evicted.iter().map(|ended| ended.number).collect(),
        _ => Vec::new(),
    };
    meant.sort_unstable();
    ended.sort_unstable();
    assert_eq!(ended, meant);
    for number in ended {
        assert!(by_number(seen.after, number).is_none());
        let id = by_number(&present, number).unwrap().id;
        for op in
            [Op::Renew { id, ttl: Duration::ZERO, number: None }, Op::Release { id, number: None, waiting_only: false }]
        {
            let told = apply(&mut seen.after.clone(), op, seen.now, seen.floor).outcome;
            assert!(matches!(&told, Outcome::Broken(mark) if mark.by == *by && mark.reason == *reason), "{told:?}");
        }
    }
}

/// A claim is passed over at most three times, and never if it is strict.
pub(crate) fn passed_over_at_most_three_times(queue: &Queue) {
    for claim in &queue.claims {
        assert!(claim.skipped <= if claim.strict { 0 } else { SKIPS_MAX }, "{claim:?}");
    }
}

/// The same operation again changes nothing but expiries and the inbox, and answers the same.
pub(crate) fn repetitions_change_nothing(seen: &Seen<'_>) {
    if matches!(seen.op, Op::Break { .. } | Op::BreakWaiter { .. } | Op::Skip { .. }) {
        return; // meant for whoever holds or waits by then
    }
    let mut again = seen.after.clone();
    let repeated = apply(&mut again, seen.op.clone(), seen.now, seen.floor + 1_000);
    assert_eq!(stored(&again), stored(seen.after), "{:?} twice", seen.op);
    assert_eq!(repeated.grants, []);
    match (&seen.applied.outcome, &repeated.outcome) {
        (Outcome::Released, Outcome::Gone | Outcome::Broken(_)) => {}
        (first, second) => assert_eq!(first, second),
    }
    // A little later and from elsewhere, while nothing has died: only expiries and a waiter's inbox.
    let mut later = seen.after.clone();
    let moved = match seen.op.clone() {
        Op::Claim(request) => Op::Claim(tenure::machine::ClaimRequest { inbox: "elsewhere".into(), ..request }),
        other => other,
    };
    let soonest = seen.after.claims.iter().map(|claim| claim.expires).min().unwrap_or(seen.now);
    let moment = Moment(seen.now.0.midpoint(soonest.0)).max(seen.now);
    apply(&mut later, moved, moment, seen.floor);
    let lasting = |queue: &Queue| {
        let claims = queue.claims.iter().map(|claim| Claim { expires: Moment(0), inbox: "".into(), ..claim.clone() });
        (queue.last, queue.last_number, claims.collect::<Vec<_>>())
    };
    if !matches!(seen.applied.outcome, Outcome::Refused(_) | Outcome::Busy(_)) {
        assert_eq!(lasting(&later), lasting(seen.after));
    }
}

/// The state survives being written down: nothing is lost, and it goes on the same.
pub(crate) fn written_down_and_read_back(seen: &Seen<'_>) {
    let bytes = seen.before.to_bytes();
    let mut read = Queue::from_bytes(&bytes).unwrap();
    assert_eq!(stored(&read), stored(seen.before));
    assert_eq!(read.to_bytes(), bytes, "what has not changed need not be written");
    let applied = apply(&mut read, seen.op.clone(), seen.now, seen.floor);
    let mut unwritten = seen.before.clone();
    assert_eq!(applied, apply(&mut unwritten, seen.op.clone(), seen.now, seen.floor));
    assert_eq!(stored(&read), stored(&unwritten));
}

fn newly_granted<'a>(seen: &'a Seen<'_>) -> impl Iterator<Item = &'a Claim> {
    seen.after.holders().filter(|held| by_number(seen.before, held.number).is_none_or(|c| c.grant.is_none()))
}

/// Whether another claim of its owner holds with the same token.
pub(crate) fn re_enters(queue: &Queue, claim: &Claim) -> bool {
    let token = claim.grant.map(|grant| grant.token);
    queue.holders().any(|held| {
        held.number != claim.number && held.owner == claim.owner && held.grant.map(|grant| grant.token) == token
    })
}

/// Whether it was let in with a claim of its owner: one that holds, or one that the sweep granted and this very
/// operation ended.
pub(crate) fn re_entered(seen: &Seen<'_>, claim: &Claim) -> bool {
    let ended = |c: &&Claim| c.expires > seen.now && by_number(seen.after, c.number).is_none();
    re_enters(seen.after, claim) || seen.before.waiters().filter(ended).any(|ended| ended.owner == claim.owner)
}
