//! What happens in between: moments that no test could hit from outside are made here one step at a time, with real
//! servers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_testkit::servers::shared;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use super::ZookeeperBackend;
use super::append::claim;
use super::desk::Desk;
use super::keeper::Rounds;
use super::look::{Ahead, Fresh, Judged};
use super::moving::stem;
use super::names::{Node, parent};
use super::pulse::Trusted;
use super::record::{Known, Record};
use super::release::{Meant, release};
use super::renew::renew;
use super::session::Session;
use super::table::Entry;
use crate::backend::{Claimed, Released, RenewRequest, Renewed};
use crate::clock::SystemClock;
use crate::error::{Certainty, ErrorKind};
use crate::machine::{ClaimRequest, Shape, Standing};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};

const LONG: Duration = Duration::from_secs(60);

pub(super) async fn client(chroot: &str) -> Arc<Desk> {
    let url = shared::zookeeper().url_below(chroot);
    ZookeeperBackend::open(&url, Arc::new(SystemClock)).await.unwrap().desk
}

pub(super) fn name() -> Name {
    Name::new("x").unwrap()
}

/// A claim whose id may come again.
pub(super) fn request(ttl: Duration) -> ClaimRequest {
    ClaimRequest {
        id: ClaimId::random(),
        owner: Owner::random(),
        label: "".into(),
        shape: Shape::Exclusive,
        ttl,
        queue: true,
        block: 1,
        strict: false,
        inbox: "".into(),
        within: Vec::new(),
        reenter: None,
        solo: false,
        attempt: 1,
        presumed: Duration::ZERO,
    }
}

pub(super) async fn stands(desk: &Arc<Desk>, request: &ClaimRequest) -> Standing {
    match claim(desk.clone(), name(), request.clone()).await.unwrap().value {
        Claimed::Stands(standing) => standing,
        other => panic!("{other:?}"),
    }
}

/// Renews, and again where that was not answered at all.
async fn renewed(desk: &Arc<Desk>, requests: &[&ClaimRequest]) -> Vec<Renewed> {
    let renewal = |wish: &&ClaimRequest| RenewRequest::of(&name(), wish);
    let mut last = None;
    for _ in 0..20 {
        match renew(desk.clone(), requests.iter().map(renewal).collect()).await {
            Ok(answer) => return answer.value,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                last = Some(error);
            }
        }
    }
    panic!("not answered: {last:?}")
}

async fn found(desk: &Arc<Desk>, id: ClaimId) -> Vec<(Node, Arc<Known>)> {
    let session = desk.usual().await.unwrap();
    desk.find(&session, &name(), id, Fresh::Yes).await.unwrap()
}

/// A node as a claim whose answer was lost would leave it.
async fn orphan(desk: &Arc<Desk>, session: &Session, request: &ClaimRequest) -> String {
    let parent = desk.paths.of(&name());
    session.make_container(&parent).await.unwrap();
    let record = Record::of(request, request.ttl);
    let stem = stem(&record);
    let options = session.options(CreateMode::EphemeralSequential);
    let made = session.client.create(&format!("{parent}/{stem}"), &record.bytes(), &options).await.unwrap();
    session.made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{stem}{}", made.1)
}

/// As if it had connected anew, and nobody asked the servers about it: not those who were told of its first
/// connection either.
async fn reconnect(session: &Session) {
    tokio::time::sleep(Duration::from_millis(200)).await;
    session.trust().reconnect();
}

fn placed_at(desk: &Desk, id: ClaimId) -> String {
    desk.table.get(id).and_then(|entry| entry.placed).unwrap().node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_a_claim_came_for_meanwhile_is_not_swept() {
    let (desk, wish) = (client("/swept").await, request(LONG));
    let session = desk.session(LONG).await.unwrap();
    let node = orphan(&desk, &session, &wish).await;
    let mut rounds = Rounds::default();
    let suspects = rounds.look_for_unknown(&desk, &session).await.unwrap();
    rounds.remove_suspects(&desk, &session, suspects).await;
    let unknown = rounds.look_for_unknown(&desk, &session).await.unwrap();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    stands(&desk, &wish).await;
    assert_eq!(placed_at(&desk, wish.id), node, "it was found again");
    rounds.remove_suspects(&desk, &session, unknown).await;
    assert_eq!(found(&desk, wish.id).await.len(), 1);
    assert!(matches!(&renewed(&desk, &[&wish]).await[..], [Renewed::Stands(_)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_being_swept_is_no_claims_any_more() {
    let (desk, wish) = (client("/condemned").await, request(LONG));
    let session = desk.session(LONG).await.unwrap();
    let node = orphan(&desk, &session, &wish).await;
    assert!(desk.table.condemn(wish.id, session.id, &node));
    assert!(stands(&desk, &wish).await.state.is_ok());
    assert_ne!(placed_at(&desk, wish.id), node);
    assert_eq!(found(&desk, wish.id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_was_entered_in_a_session_that_had_ended_is_not_stuck_there() {
    let (desk, wish, other) = (client("/stuck").await, request(LONG), request(LONG));
    let over = desk.session(LONG).await.unwrap();
    stands(&desk, &other).await;
    over.end();
    let entry = Entry { request: Arc::new(wish.clone()), placed: None, ..desk.table.get(other.id).unwrap() };
    desk.table.enter(wish.id, || Entry { gate: Arc::default(), ..entry });
    stands(&desk, &wish).await;
    assert_ne!(desk.table.get(wish.id).unwrap().session.id, over.id);
    assert_eq!(renewed(&desk, &[&other]).await, [Renewed::Gone]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_granted_in_a_session_that_is_given_up() {
    let (desk, first, wish) = (client("/spoilt").await, request(LONG), request(LONG));
    stands(&desk, &first).await;
    let session = desk.session(LONG).await.unwrap();
    // Connected anew twice, and nobody has asked the servers in between.
    reconnect(&session).await;
    session.trust().reconnect();
    let refused = super::append::claim(desk.clone(), Name::new("other").unwrap(), wish).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_placed_in_a_session_that_has_ended_is_gone() {
    let (desk, wish) = (client("/over").await, request(LONG));
    stands(&desk, &wish).await;
    desk.table.get(wish.id).unwrap().session.end();
    assert_eq!(renewed(&desk, &[&wish]).await, [Renewed::Gone]);
    assert!(desk.table.get(wish.id).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_slow_keeps_no_other_waiting() {
    let (desk, quick, slow) = (client("/slow").await, request(Duration::from_secs(20)), request(LONG));
    stands(&desk, &quick).await;
    stands(&desk, &slow).await;
    let session = desk.session(LONG).await.unwrap();
    // A write of it that is never answered.
    let turn = session.beating.lock().await;
    let answers = renewed(&desk, &[&slow, &quick]).await;
    assert!(matches!(&answers[..], [Renewed::Unknown(_), Renewed::Stands(_)]), "{answers:?}");
    drop(turn);
    assert!(matches!(&renewed(&desk, &[&slow]).await[..], [Renewed::Stands(_)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_counts_while_it_is_not_known_what_timeout_a_connection_has() {
    let desk = client("/doubt").await;
    let session = desk.session(LONG).await.unwrap();
    reconnect(&session).await;
    let (connection, counted) = (session.doubt().unwrap(), session.counted());
    // Older than what it is known by without any proof.
    while desk.clock.now() < counted + LONG / 50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let trusted = Trusted { seen: desk.clock.now(), ttl: LONG };
    assert!(desk.prove(&session, trusted).await.is_err(), "although it was written to");
    assert_eq!(session.counted(), counted);
    assert!(session.settle(connection, session.tick()));
    assert!(desk.prove(&session, trusted).await.is_ok() && session.counted() > counted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_in_doubt_holds_no_other_back() {
    let (desk, quick, slow) = (client("/unsure").await, request(Duration::from_secs(20)), request(LONG));
    stands(&desk, &quick).await;
    stands(&desk, &slow).await;
    let session = desk.session(LONG).await.unwrap();
    reconnect(&session).await;
    let answers = renewed(&desk, &[&slow, &quick]).await;
    assert!(matches!(&answers[..], [Renewed::Unknown(_), Renewed::Stands(_)]), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_given_up_is_not_kept_alive() {
    let (desk, wish) = (client("/given-up").await, request(LONG));
    stands(&desk, &wish).await;
    let session = desk.session(LONG).await.unwrap();
    desk.session_ended(&session);
    let (id, left) = (session.id, Arc::downgrade(&session));
    drop(session);
    for _ in 0..500 {
        if left.upgrade().is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(left.upgrade().is_none(), "somebody has it");
    assert_ne!(desk.session(LONG).await.unwrap().id, id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_session_that_nobody_has_is_let_go() {
    let (desk, wish) = (client("/let-go").await, request(LONG));
    stands(&desk, &wish).await;
    let session = desk.session(LONG).await.unwrap();
    assert!(!desk.retire(&session), "it has a claim");
    desk.vacate(&session);
    assert!(!desk.retire(&session), "although it has lost its slot");
    let next = desk.session(LONG).await.unwrap();
    assert_ne!(next.id, session.id);
    desk.table.remove_session(session.id);
    let mut retired = false;
    for _ in 0..500 {
        // Whoever looks after the claim or the session has it for a moment now and then.
        retired = desk.retire(&session);
        if retired {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(retired);
    assert_eq!(desk.session(LONG).await.unwrap().id, next.id, "the one that has come for it stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_fetched_does_not_undo_that_another_attempt_has_it() {
    let (one, two) = (client("/undone").await, client("/undone").await);
    let wish = request(LONG);
    stands(&one, &wish).await;
    let (node, known) = found(&two, wish.id).await.remove(0);
    let later = stands(&one, &ClaimRequest { attempt: 2, ..wish.clone() }).await;
    let session = two.session(LONG).await.unwrap();
    let mut record = Record::of(&wish, LONG);
    (record.number, record.token) = (Some(known.number()), Some(known.token()));
    let trusted = Trusted { seen: session.counted(), ttl: LONG };
    let moved = two.transfer(&session, &name(), (&node, known.version), record, trusted).await.unwrap();
    assert!(moved.is_none(), "{moved:?}");
    let (_, known) = found(&two, wish.id).await.remove(0);
    assert_eq!(known.number(), later.number);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_goes_only_where_it_lives_as_long_as_it_was_trusted() {
    let desk = client("/trusted").await;
    let (short, long) = (Duration::from_millis(2000), Duration::from_millis(2100));
    let next = desk.session(long).await.unwrap();
    let old = next.counted();
    while desk.clock.now() < old + Duration::from_millis(1200) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(next.counted(), old, "nothing was written");
    let wish = request(short);
    let before = stands(&desk, &wish).await;
    let (node, known) = found(&desk, wish.id).await.remove(0);
    let mut record = Record::of(&wish, long);
    (record.number, record.token) = (Some(known.number()), Some(known.token()));
    // Longer than anything can be known to live.
    let trusted = Trusted { seen: desk.clock.now(), ttl: long * 3 };
    let refused = desk.transfer(&next, &name(), (&node, known.version), record, trusted).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(placed_at(&desk, wish.id), node.name);
    let now = desk.clock.now();
    let trusted = Trusted { seen: now, ttl: short }.until(now, next.tick());
    let longer = renewed(&desk, &[&ClaimRequest { ttl: long, ..wish.clone() }]).await.remove(0);
    let Renewed::Stands(after) = longer else { panic!("{longer:?}") };
    assert_eq!((after.number, after.ttl), (before.number, long));
    let session = desk.table.get(wish.id).unwrap().session;
    assert!(session.timeout == long && session.counted() + long >= trusted, "{session:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_means_a_claim_wherever_it_goes() {
    let (one, two) = (client("/meant").await, client("/meant").await);
    let wish = request(LONG);
    stands(&one, &wish).await;
    let (node, known) = found(&one, wish.id).await.remove(0);
    let meant = Meant::of(&node, &known);
    renewed(&two, &[&wish]).await;
    let (moved, known) = found(&one, wish.id).await.remove(0);
    assert_ne!(moved.name, node.name);
    assert_eq!(Meant::of(&moved, &known), meant);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_listed_for_many_at_a_time() {
    let desk = client("/listed").await;
    let wishes: Vec<ClaimRequest> = (0..20).map(|_| request(LONG)).collect();
    for wish in &wishes {
        stands(&desk, wish).await;
    }
    let (session, name) = (desk.session(LONG).await.unwrap(), name());
    let listed = join_all(wishes.iter().map(|_| desk.listing(&session, &name, Fresh::No))).await;
    let listed: Vec<_> = listed.into_iter().map(Result::unwrap).collect();
    assert!(listed.iter().all(|listing| listing.nodes.len() == 20));
    // The second came when the first was under way.
    assert!(listed[1..].iter().all(|listing| Arc::ptr_eq(listing, &listed[1])));
    let answers = renewed(&desk, &wishes.iter().collect::<Vec<_>>()).await;
    let holds = |renewed: &Renewed| matches!(renewed, Renewed::Stands(Standing { state: Ok(_), .. }));
    assert_eq!(answers.iter().filter(|renewed| holds(renewed)).count(), 1, "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_made_in_a_session_that_has_been_in_doubt_for_long() {
    let (ttl, desk) = (Duration::from_secs(2), client("/in-doubt").await);
    let session = desk.session(ttl).await.unwrap();
    reconnect(&session).await;
    let (early, late) = (request(ttl), request(ttl));
    if !session.has_lost(ttl / 2) {
        // What counted before still does.
        let answer = claim(desk.clone(), name(), early.clone()).await.unwrap();
        assert!(answer.counted_from + ttl > desk.clock.now());
    }
    while !session.has_lost(ttl / 2) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = claim(desk.clone(), name(), late.clone()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.certainty()), (ErrorKind::Unavailable, Certainty::NotApplied), "{refused}");
    assert!(desk.table.get(late.id).is_none() && found(&desk, late.id).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_far_back_lists_no_more_because_the_queue_moves_on() {
    let desk = client("/moves-on").await;
    let wishes: Vec<ClaimRequest> = (0..9).map(|_| request(LONG)).collect();
    let mut numbers = Vec::new();
    for wish in &wishes {
        numbers.push(stands(&desk, wish).await.number);
    }
    let (session, name) = (desk.session(LONG).await.unwrap(), name());
    let listing = desk.listing(&session, &name, Fresh::No).await.unwrap();
    // A client that has seen nothing of the queue before: it remembers no holder.
    let other = client("/moves-on").await;
    for (wish, number) in wishes.iter().zip(&numbers).take(5) {
        let released = release(desk.clone(), name.clone(), wish.id, Some(*number)).await.unwrap();
        assert_eq!(released, Released::Yes);
    }
    let (last, elsewhere) = (&wishes[8], other.session(LONG).await.unwrap());
    // Its server has heard of all that.
    other.listing(&elsewhere, &name, Fresh::Yes).await.unwrap();
    let judged = other.judge(&elsewhere, &name, (&listing, 8), last, false).await.unwrap();
    let Judged::Waits(place, ahead) = judged else { panic!("{judged:?}") };
    assert_eq!((place.ahead, place.waiters_ahead), (3, 2), "those that have gone do not count");
    assert_eq!(ahead, Ahead::Node(placed_at(&desk, wishes[7].id)), "it is woken by the one before it");
    // One before which all others have gone may hold: it lists anew.
    let judged = other.judge(&elsewhere, &name, (&listing, 5), &wishes[5], false).await.unwrap();
    assert!(matches!(judged, Judged::Changed), "{judged:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_does_not_answer_leaves_its_claims_unknown_and_fails_no_others() {
    let (ttl, desk, wish) = (Duration::from_secs(2), client("/one-fails").await, request(Duration::from_secs(2)));
    stands(&desk, &wish).await;
    let session = desk.table.get(wish.id).unwrap().session;
    // As if its write were under way and not answered.
    let writing = session.beating.clone().lock_owned().await;
    let batch = vec![RenewRequest { ttl, ..RenewRequest::of(&name(), &wish) }];
    let answer = renew(desk.clone(), batch).await.unwrap();
    assert!(matches!(answer.value[..], [Renewed::Unknown(_)]), "{answer:?}");
    drop(writing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_fails_after_it_has_deleted_a_node_is_unknown() {
    let (desk, wish) = (client("/partly").await, request(LONG));
    let old = desk.session(LONG).await.unwrap();
    orphan(&desk, &old, &wish).await;
    // Its node is still there, but does not count: so a note is looked for, which this client may not read.
    desk.session_ended(&old);
    let session = desk.usual().await.unwrap();
    let note = desk.paths.note(wish.id);
    session.make_container(parent(&note)).await.unwrap();
    let unreadable = [Acl::new(Permission::DELETE, AuthId::anyone())];
    let options = CreateMode::Ephemeral.with_acls(Acls::new(&unreadable));
    session.client.create(&note, b"", &options).await.unwrap();
    let failed = release(desk.clone(), name(), wish.id, None).await.unwrap_err();
    assert!(found(&desk, wish.id).await.is_empty(), "its node was deleted");
    assert_eq!(failed.certainty(), Certainty::Unknown, "{failed}");
    let again = release(desk.clone(), name(), wish.id, None).await.unwrap_err();
    assert_eq!(again.certainty(), Certainty::NotApplied, "{again}");
}
