//! TLS, logins and rights; what is said when they are wrong.

use tenure::{ErrorKind, Tenure};
use tenure_testkit::servers::Etcd;

use crate::support::{LONG, connect, soon, turn, until_waiting, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_with_tls_a_login_and_rights_on_one_prefix_alone() {
    let etcd = Etcd::builder().members(1).tls().login("locker", "s3cret/with@chars", "/locks/").start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x", LONG);
    until_waiting(&a, "x", 1).await;
    assert!(etcd.etcdctl(&["get", "--prefix", "--keys-only", "/locks/x/"]).contains("/locks/x/"));
    assert_eq!(b.break_holders("x", None, "test").await.unwrap(), 1);
    let loss = soon("the loss", held.lost()).await;
    assert!(loss.to_string().contains("broken"), "{loss}");
    turn(next).await.release().await.unwrap();
    assert!(!a.url().contains("s3cret"), "{}", a.url());

    let plainly = format!("etcd://{}", etcd.address(0));
    let refused = soon("a refusal", Tenure::connect(&plainly)).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("add tls=true"), "{refused}");

    let wrong = etcd.url().replace("s3cret", "guess");
    let refused = soon("a refusal", Tenure::connect(&wrong)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(!refused.to_string().contains("guess"), "{refused}");

    let elsewhere = etcd.url().replace("prefix=%2Flocks%2F", "prefix=%2Fother%2F");
    let refused = soon("a refusal", Tenure::connect(&elsewhere)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("right"), "{refused}");

    let nobody = etcd.url().replace("locker:s3cret%2Fwith%40chars@", "");
    let refused = soon("a refusal", Tenure::connect(&nobody)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_speaks_otherwise_is_given_up_unless_members_may_come_that_do_not() {
    let etcd = Etcd::start();
    let tls = |members: &[&str]| format!("etcd://{}?tls=true", members.join(","));
    let [a, b, c] = [0, 1, 2].map(|member| etcd.address(member));
    let refused = soon("a refusal", Tenure::connect(tls(&[&a, &b, "127.0.0.1:1"]))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(refused.to_string().contains("speaks without TLS there: leave tls=true out"), "{refused}");
    let waits = soon("an answer", Tenure::connect(tls(&[&c, "127.0.0.1:1", "127.0.0.1:2"]))).await.unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::Unavailable, "{waits}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_where_none_is_wanted_is_told() {
    let etcd = Etcd::builder().members(1).start();
    let url = etcd.url().replace("etcd://", "etcd://me:secret@");
    let refused = soon("a refusal", Tenure::connect(&url)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("no logins"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_said_with_every_address() {
    let refused = soon("a refusal", Tenure::connect("etcd://127.0.0.1:1,127.0.0.1:2")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let text = refused.to_string();
    for member in ["127.0.0.1:1: ", "127.0.0.1:2: "] {
        let told = text.split(member).nth(1).unwrap_or_default();
        assert!(told.split(';').next().is_some_and(|why| why.contains("Connection refused")), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_of_members_versions_and_what_is_missing() {
    let etcd = Etcd::start();
    let checkup = tenure::examine(etcd.url()).await.unwrap();
    let facts = format!("{:?}", checkup.facts);
    assert!(facts.contains("3 with a vote, 2 needed"), "{facts}");
    assert!(facts.contains("leader") && facts.contains("follower") && facts.contains("shortest ttl"), "{facts}");
    let versions: Vec<_> = checkup.facts.iter().filter_map(|(_, told)| told.split("etcd ").nth(1)).collect();
    let old = versions.iter().any(|told| told.starts_with("3.4.2") || told.starts_with("3.5.0"));
    let findings = format!("{:?}", checkup.findings);
    assert_eq!(findings.contains("a leader that stands still"), old, "{versions:?} {findings}");
    let failover = crate::support::connect(&etcd.url()).await.guarantees().failover;
    assert_eq!(failover == tenure::backend::Survival::FencedOnly, old, "{versions:?} {failover}");
    let dead = (etcd.leader() + 1) % etcd.size();
    etcd.kill(dead);
    let checkup = tenure::examine(etcd.url()).await.unwrap();
    let findings = format!("{:?}", checkup.findings);
    assert!(findings.contains(&etcd.address(dead)) && findings.contains("does not answer"), "{findings}");
    let one = etcd.url_of([etcd.address(etcd.leader())].into_iter(), "");
    let findings = format!("{:?}", tenure::examine(one).await.unwrap().findings);
    assert!(findings.contains("1 of 3 members"), "{findings}");
}
