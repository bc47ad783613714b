//! What holds over time and among many: tokens, expiry, independence.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tenure::backend::{ClaimRequest, Claimed};
use tenure::{NAME_BYTES_MAX, Name};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::fixture::{Fixture, plain_request};

/// Tokens strictly increase from holder to holder, also when the store's wall clock steps back and when
/// the name was forgotten in between.
pub async fn tokens_strictly_increase_from_holder_to_holder(fixture: &Fixture) {
    let clients = [fixture.client().await, fixture.client().await];
    if fixture.lacks(&clients[0], "tokens", |c| c.tokens) {
        return;
    }
    let name = fixture.name("tokens");
    let mut last = None;
    for turn in 0..12 {
        let client = &clients[turn % 2];
        let request = fixture.request();
        let token = client.holds(&name, &request).await.token;
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        client.releases(&name, &request).await;
        match turn {
            3 => fixture.pass(Duration::from_millis(5)).await,
            6 => _ = fixture.step_wall(-3_600_000_000),
            _ => {}
        }
    }
}

/// An expired claim never blocks the next one, neither one that waits already nor one that comes.
pub async fn an_expired_claim_never_blocks_the_next_one(fixture: &Fixture) {
    let (dies, next) = (fixture.client().await, fixture.client().await);
    let ttl = fixture.ttl_short(&dies.capabilities());
    let (name, dying) = (fixture.name("comes"), ClaimRequest { ttl, ..fixture.request() });
    let expired = dies.holds(&name, &dying).await;
    fixture.pass(ttl).await;
    let grant = granted_soon(fixture, &next, &name, ttl).await;
    assert!(grant > expired.token.get() || !next.capabilities().tokens);

    if !next.capabilities().queue {
        return;
    }
    let name = fixture.name("waits");
    let (dying, waiter_that_dies) = (fixture.request(), ClaimRequest { ttl, ..fixture.request() });
    let waiting = ClaimRequest { ttl: ttl * 20, ..fixture.request() };
    let dying = ClaimRequest { ttl, ..dying };
    dies.holds(&name, &dying).await;
    dies.waits(&name, &waiter_that_dies).await;
    next.waits(&name, &waiting).await;
    fixture.pass(ttl).await;
    next.wait_for_grant(&name, &waiting).await;
}

/// Claims anew, a little later each time, until it is granted; the token.
async fn granted_soon(fixture: &Fixture, client: &Client, name: &Name, ttl: Duration) -> u64 {
    // Some stores look for the dead only now and then.
    for _ in 0..40 {
        let request = ClaimRequest { queue: false, ..fixture.request() };
        match client.claim(name, &request).await {
            Claimed::Stands(standing) => return standing.state.expect("it does not wait").token.get(),
            Claimed::Busy(_) => fixture.pass(ttl / 10).await,
            other @ Claimed::Refused(_) => panic!("{other:?}"),
        }
    }
    panic!("{name} is busy long after its holder died: {:?}", client.inspect(name).await)
}

/// A claim that nobody renews ends at its ttl, and not before.
pub async fn a_claim_that_nobody_renews_ends_at_its_ttl(fixture: &Fixture) {
    let (client, other) = (fixture.client().await, fixture.client().await);
    let ttl = fixture.ttl_short(&client.capabilities());
    let (name, dying) = (fixture.name("ttl"), ClaimRequest { ttl, ..fixture.request() });
    client.holds(&name, &dying).await;
    fixture.pass(ttl / 4).await;
    other.is_busy(&name, &fixture.request()).await;
    fixture.pass(ttl * 3 / 4).await;
    for _ in 0..40 {
        if client.inspect(&name).await.is_free() {
            let gone = client.renew(&name, &dying).await;
            assert_eq!(gone, tenure::backend::Renewed::Gone, "a renewal does not put it back");
            return;
        }
        fixture.pass(ttl / 10).await;
    }
    panic!("{name} is held long after its ttl: {:?}", client.inspect(&name).await)
}

/// Names are independent of each other, also when one begins the other.
pub async fn names_are_independent_of_each_other(fixture: &Fixture) {
    let client = fixture.client().await;
    let base = fixture.name("a");
    let names = ["", "/", "/b", "b", "B", " ", "%", "*"].map(|tail| Name::new(format!("{base}{tail}")).expect("valid"));
    let requests = names.clone().map(|_| fixture.request());
    for (name, request) in names.iter().zip(&requests) {
        client.holds(name, request).await;
    }
    client.releases(&names[0], &requests[0]).await;
    client.breaks(&names[1], None, ("operator", ""), &[&requests[1].owner]).await;
    for (name, request) in names.iter().zip(&requests).skip(2) {
        client.is_busy(name, &fixture.request()).await;
        assert!(client.renews(name, request).await.state.is_ok());
    }
    assert!(client.inspect(&names[0]).await.is_free() && client.inspect(&names[1]).await.is_free());
}

/// Any printable name works, up to the longest.
pub async fn any_printable_name_works(fixture: &Fixture) {
    let client = fixture.client().await;
    let base = fixture.name("n");
    let room = NAME_BYTES_MAX - base.as_str().len();
    let long = [("x", room), ("é", room / 2), ("🔒", room / 4)].map(|(text, count)| text.repeat(count));
    let odd = [" ", "'", "\"", "\\", "{a}", "a:b", "a;b", "//", "../..", "?#&=", "%00", "$1", "\u{202e}", "e\u{301}"];
    for tail in odd.into_iter().chain(long.iter().map(String::as_str)) {
        let (name, request) = (Name::new(format!("{base}{tail}")).expect("a valid name"), fixture.request());
        client.holds(&name, &request).await;
        client.is_busy(&name, &fixture.request()).await;
        let view = client.inspect(&name).await;
        assert_eq!((view.name, view.holders.len()), (name.clone(), 1));
        client.releases(&name, &request).await;
        assert!(client.inspect(&name).await.is_free(), "{name}");
    }
}

/// Eight clients at once never hold together, and each has its turns.
pub async fn eight_clients_at_once_never_hold_together(fixture: &Fixture) {
    let name = fixture.name("eight");
    let seen = Arc::new(Seen::default());
    // On tasks of their own, so that they really meet.
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(take_turns(fixture.client().await, name.clone(), seen.clone()));
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap_or_else(|error| resume_unwind(error.into_panic()));
    }
    let view = fixture.client().await.inspect(&name).await;
    assert!(view.is_free(), "{view:?}");
}

/// Calls may be made by threads without a runtime: a guard may be dropped by any.
pub async fn calls_may_be_made_by_threads_without_a_runtime(fixture: &Fixture) {
    let (client, other) = (fixture.client().await.elsewhere(), fixture.client().await);
    let name = fixture.name("thread");
    // More than once: a store may do the first otherwise than those that come after it.
    for _ in 0..3 {
        let (held, next) = (fixture.request(), fixture.request());
        client.holds(&name, &held).await;
        assert!(client.renews(&name, &held).await.state.is_ok());
        assert_eq!(client.inspect(&name).await.holders.len(), 1);
        client.releases(&name, &held).await;
        other.holds(&name, &next).await;
        client.is_busy(&name, &held).await;
        other.releases(&name, &next).await;
    }
}

#[derive(Default)]
struct Seen {
    holding: AtomicU32,
    last_token: AtomicU64,
}

async fn take_turns(client: Client, name: Name, seen: Arc<Seen>) {
    for _ in 0..5 {
        let request = ClaimRequest { queue: client.capabilities().queue, ..plain_request() };
        let token = acquire(&client, &name, &request).await;
        assert_eq!(seen.holding.fetch_add(1, Ordering::SeqCst), 0, "two hold at once");
        let before = seen.last_token.swap(token, Ordering::SeqCst);
        assert!(before < token || !client.capabilities().tokens, "{token} after {before}");
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        assert_eq!(seen.holding.fetch_sub(1, Ordering::SeqCst), 1, "two held at once");
        client.releases(&name, &request).await;
    }
}

/// Claims until it holds; the token.
async fn acquire(client: &Client, name: &Name, request: &ClaimRequest) -> u64 {
    for _ in 0..10_000 {
        match client.claim(name, request).await {
            Claimed::Stands(standing) => {
                let grant = match standing.state {
                    Ok(grant) => grant,
                    Err(_) => client.wait_for_grant(name, request).await,
                };
                return grant.token.get();
            }
            // No queue: ask again.
            Claimed::Busy(_) => tokio::task::yield_now().await,
            other @ Claimed::Refused(_) => panic!("{other:?}"),
        }
    }
    panic!("{name} never became free")
}
