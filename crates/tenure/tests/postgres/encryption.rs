//! `sslmode`: which connections are encrypted, whose certificates are taken, and who gets in by one.

use std::fs;

use tenure::{Error, ErrorKind, Tenure};
use tenure_testkit::servers::{CERTIFIED, Postgres, shared};

use crate::support::{LONG, connect, soon};

const LOGIN: &str = "locker:s3cret%2Fwith%40chars";

fn server() -> Postgres {
    Postgres::builder().tls().login(shared::USER, shared::PASSWORD).start()
}

fn url(server: &Postgres, login: &str, options: &str) -> String {
    format!("postgres://{login}@127.0.0.1:{}/postgres?{options}", server.port())
}

async fn refused(url: &str) -> Error {
    soon("an answer", Tenure::connect(url)).await.unwrap_err()
}

/// How many connections of this name are encrypted, and how many there are. Takes a lock first.
async fn encrypted(server: &Postgres, login: &str, options: &str, name: &str) -> (bool, bool) {
    let tenure = connect(url(server, login, &format!("{options}&schema={name}&application_name={name}"))).await;
    let guard = soon("a grant", tenure.lock("x").ttl(LONG).acquire()).await.unwrap();
    let counted = |which: &str| {
        let all = "pg_stat_ssl JOIN pg_stat_activity USING (pid)";
        server.psql(&format!("SELECT count(*) FROM {all} WHERE application_name = '{name}' AND {which}")) != "0"
    };
    let seen = (counted("ssl"), counted("NOT ssl"));
    soon("a release", guard.release()).await.unwrap();
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_where_the_server_has_it_unless_told_otherwise() {
    let (with, without) = (server(), shared::postgres());
    let ca = with.ca_path();
    for (at, options) in [
        "",
        "sslmode=prefer",
        "sslmode=allow",
        "sslmode=require",
        &format!("sslmode=require&sslrootcert={}", ca.display()),
        &format!("sslmode=verify-ca&sslrootcert={}", ca.display()),
        &format!("sslmode=verify-full&sslrootcert={}", ca.display()),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(encrypted(&with, LOGIN, options, &format!("with{at}")).await, (true, false), "{options}");
    }
    for (at, options) in ["", "sslmode=prefer", "sslmode=allow", "sslmode=disable"].into_iter().enumerate() {
        let seen = encrypted(without, "testkit", options, &format!("without{at}")).await;
        assert_eq!(seen, (false, true), "{options}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gets_in_without_tls_alone_does_so_where_tls_is_only_preferred() {
    let server = server();
    let rules = server.directory().join("data/pg_hba.conf");
    let others = fs::read_to_string(&rules).unwrap();
    fs::write(
        &rules,
        format!("hostnossl all plain 127.0.0.1/32 trust\nhostssl all plain 127.0.0.1/32 reject\n{others}"),
    )
    .unwrap();
    server.psql("CREATE USER plain; GRANT CREATE ON DATABASE postgres TO plain");
    server.psql("SELECT pg_reload_conf()");
    crate::support::until("the rules are read", async || {
        Tenure::connect(url(&server, "plain", "sslmode=disable&schema=first")).await.is_ok()
    })
    .await;
    for options in ["", "sslmode=prefer", "sslmode=allow"] {
        let name = format!("plain{}", options.len());
        assert_eq!(encrypted(&server, "plain", options, &name).await, (false, true), "{options}");
    }
    let refused = refused(&url(&server, "plain", "sslmode=require")).await;
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_checked_as_far_as_the_mode_says() {
    let server = server();
    let (ca, stranger) = (server.ca_path(), shared::tls().ca_path());
    let (ca, stranger) = (ca.display(), stranger.display());
    // The host has another name than the certificate.
    let elsewhere = |options: &str| {
        let port = server.port();
        format!("postgres://{LOGIN}@db.example:{port}/postgres?hostaddr=127.0.0.1&{options}")
    };
    for options in ["sslmode=require", &format!("sslmode=verify-ca&sslrootcert={ca}")] {
        connect(elsewhere(options)).await;
    }
    let named = refused(&elsewhere(&format!("sslmode=verify-full&sslrootcert={ca}"))).await;
    let told = format!("the certificate of PostgreSQL at db.example:{} names another host", server.port());
    assert!(named.kind() == ErrorKind::Store && named.to_string().contains(&told), "{named}");
    for mode in ["require", "verify-ca", "verify-full"] {
        let error = refused(&url(&server, LOGIN, &format!("sslmode={mode}&sslrootcert={stranger}"))).await;
        assert_eq!(error.kind(), ErrorKind::Store, "{mode}: {error}");
        assert!(error.to_string().contains("sslrootcert=FILE"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_gets_in_by_a_certificate() {
    let server = server();
    server.psql(&format!("CREATE USER \"{CERTIFIED}\"; GRANT CREATE ON DATABASE postgres TO \"{CERTIFIED}\""));
    let (cert, key) = server.client_certificate();
    let own = format!("sslcert={}&sslkey={}", cert.display(), key.display());
    for (at, mode) in ["", "sslmode=require&"].into_iter().enumerate() {
        let seen = encrypted(&server, "tenure%20client", &format!("{mode}{own}"), &format!("own{at}")).await;
        assert_eq!(seen, (true, false), "{mode}");
    }
    let error = refused(&url(&server, "tenure%20client", "sslmode=require")).await;
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("sslcert=FILE"), "{error}");
}
