//! Users, passwords and rights.

use std::time::Duration;

use tenure::{Certainty, Error, ErrorKind, Loss, Step, Tenure};
use tenure_testkit::servers::shared::ACL_RULES;
use tenure_testkit::servers::without_expiry;

use crate::support::{LONG, Server, builder, granted, patiently, refusal, until, waiters, waiting};

const USER: &str = "locker";
/// Not long: a release that is refused is tried again for as long.
const TTL: Duration = Duration::from_secs(6);

fn guarded(rules: &str) -> Server {
    let users = format!("user default off\nuser {USER} reset on >secret {rules}");
    Server::of(builder().users(&users).login(USER, "secret"))
}

fn denied(error: &Error) {
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Denied, Certainty::NotApplied), "{error}");
    assert!(!error.is_retryable() && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_let_in_is_told_so() {
    let server = guarded(ACL_RULES);
    for login in ["", ":secret@", "locker:wrong-secret@", "nobody:secret@"] {
        let error = Tenure::connect(format!("redis://{login}{}", server.address())).await.unwrap_err();
        denied(&error);
        assert!(error.to_string().contains("password"), "{error}");
    }
    server.client().await.lock("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_nobody_asked_for_is_an_error_too() {
    let server = Server::start();
    let error = Tenure::connect(format!("redis://nobody:secret@{}", server.address())).await.unwrap_err();
    denied(&error);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_changes_matters_at_the_next_connection() {
    let server = guarded(ACL_RULES);
    let client = server.client().await;
    let held = client.lock("x").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let password = |now: &str| assert_eq!(server.cli(&["acl", "setuser", USER, "resetpass", now]), "OK");
    password(">another");
    client.lock("y").acquire().await.unwrap().release().await.unwrap();
    server.cli(&["client", "kill", "user", USER]);
    // What is sent before the end of the connection is noticed fails with it.
    until("a denial", async || match refusal(&client.lock("y")).await {
        error if error.kind() == ErrorKind::Unavailable || error.certainty() == Certainty::Unknown => false,
        error => {
            denied(&error);
            true
        }
    })
    .await;
    denied(&patiently("an answer", client.lock("y").acquire()).await.unwrap_err());
    assert_eq!(patiently("the loss", held.lost()).await, Loss::Expired);
    assert!(held.renewal_failure().unwrap().contains("password"), "{:?}", held.renewal_failure());
    password(">secret");
    patiently("the way back", async {
        while client.lock("y").try_acquire().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Everything a client does: a pair, a memo, a queue, a hand-over, a break, a look.
async fn use_everything(server: &Server, rights: &str) -> Result<(), Error> {
    let (a, b) = (Tenure::connect(server.url()).await?, Tenure::connect(server.url()).await?);
    let use_all = async {
        a.lock("pair").ttl(TTL).acquire().await?.release().await?;
        let writes = a.lock("memo").ttl(TTL).acquire().await?;
        writes.write_memo("x").await?;
        writes.release().await?;
        a.memo("memo").await?;
        let held = a.lock("x").ttl(TTL).acquire().await?;
        let lock = b.lock("x").ttl(TTL);
        let waits = tokio::spawn(async move { lock.acquire_within(2 * TTL).await });
        while a.inspect("x").await?.waiters.is_empty() {
            if waits.is_finished() {
                return waits.await.unwrap().map(drop);
            }
        }
        a.list("").await?;
        held.release().await?;
        let held = waits.await.unwrap()?;
        a.break_holders("x", None, "a test").await?;
        patiently("the loss", held.lost()).await;
        drop(a.lock("x").ttl(TTL).acquire().await?);
        Ok(())
    };
    patiently(&format!("everything, {rights}"), use_all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_that_are_asked_for_are_enough() {
    let server = guarded(ACL_RULES);
    use_everything(&server, "with all rights").await.unwrap();
    let client = server.client().await;
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let waits = waiting(&server.client().await.lock("x").ttl(LONG));
    waiters(&client, "x", 1).await;
    drop(held);
    granted(waits).await.release().await.unwrap();
    // The mark of the break.
    server.cli(&["flushall"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_is_missing_is_a_denial() {
    // Not needed by what is done here: some are for replicas, some for renewals and expiries, one replaces another.
    // Without `pubsub|numsub` it is the waiter that is told, and not why.
    let spare = [
        "+script|load",
        "+wait",
        "+info",
        "+unsubscribe",
        "+pexpire",
        "+pexpireat",
        "+zremrangebyscore",
        "+hmget",
        "+zrank",
        "+zcard",
        "+mget",
        "+zrangebyscore",
        "+pubsub|numsub",
        "+setrange",
    ];
    let rights: Vec<&str> = ACL_RULES.split(' ').filter(|rule| rule.starts_with('+')).collect();
    let server = guarded(ACL_RULES);
    let (mut unneeded, mut for_ever) = (Vec::new(), Vec::new());
    for right in rights {
        if right == "+@connection" || spare.contains(&right) {
            continue;
        }
        let rules = ACL_RULES.split(' ').filter(|rule| *rule != right);
        let rules: Vec<&str> = ["acl", "setuser", USER, "reset", "on", ">secret"].into_iter().chain(rules).collect();
        assert_eq!(server.cli(&rules), "OK");
        server.cli(&["script", "flush"]);
        match use_everything(&server, &format!("without {right}")).await {
            Ok(()) => unneeded.push(right),
            Err(error) => {
                // A release that was refused for as long as it was tried may not say by what.
                let given_up = error.kind() == ErrorKind::Unavailable && error.step() == Some(Step::Release);
                assert!(error.kind() == ErrorKind::Denied || given_up, "{right}: {error}");
                assert!(given_up || !error.is_retryable() && error.to_string().contains("right"), "{right}: {error}");
            }
        }
        let left = without_expiry(&server);
        if !left.is_empty() {
            for_ever.push((right, left));
        }
        // What could not be ended without the right ends with its ttl, which nobody waits for here.
        server.cli(&["flushall"]);
    }
    assert!(unneeded.is_empty(), "{unneeded:?}");
    assert!(for_ever.is_empty(), "{for_ever:#?}");
}
