//! TLS and logins that do not fit: each is told in one sentence with what to write, at once, and by its exit code.

use std::fmt::Display;
use std::process::Command;
use std::sync::OnceLock;

use tenure_testkit::servers::{Etcd, Postgres, Zookeeper, shared};

use crate::support::{Store, bare, done};

/// What the user of these servers is called, and its password as a URL has it.
const LOGIN: &str = "locker:s3cret%2Fwith%40chars@";

fn etcd() -> &'static Etcd {
    static SERVER: OnceLock<Etcd> = OnceLock::new();
    SERVER.get_or_init(|| Etcd::builder().members(1).tls().login(shared::USER, shared::PASSWORD, "/locks/").start())
}

fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::builder().tls().login(shared::USER, shared::PASSWORD).start())
}

fn zookeeper() -> &'static Zookeeper {
    static SERVER: OnceLock<Zookeeper> = OnceLock::new();
    SERVER.get_or_init(|| Zookeeper::builder().members(1).tls().start())
}

/// `tenure run` over this URL fails with this code, and says this once: it is not tried again.
fn fails(url: &str, code: i32, told: impl Display) {
    let refused = done(bare(&["run", "x", "--", "echo", "ran"]).env("TENURE_URL", url)).exits(code);
    assert_eq!(refused.text(), "", "{url}");
    assert_eq!(refused.stderr, format!("tenure: $TENURE_URL: {told}\n"), "{url}");
}

/// The same of a URL that was understood: with the URL, and the cause if there is one.
fn is_refused(url: &str, code: i32, told: impl Display, cause: &str) {
    let shown = url.replace(LOGIN, "locker:***@");
    let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
    fails(url, code, format!("{told} [{shown}]{cause}"));
}

/// Files that are not what a URL says.
struct Files {
    store: Store,
}

impl Files {
    fn new() -> Self {
        let store = Store::new();
        std::fs::write(store.file("empty.pem"), "no certificate").unwrap();
        let made = Command::new("openssl").args(["genrsa", "-out"]).arg(store.file("other.key")).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self { store }
    }

    fn empty(&self) -> String {
        self.store.file("empty.pem").display().to_string()
    }

    /// A key that is no certificate's.
    fn other_key(&self) -> String {
        self.store.file("other.key").display().to_string()
    }

    fn missing(&self) -> String {
        self.store.file("missing.pem").display().to_string()
    }
}

/// What is said of each bad file, by the names that a store's options have, given a URL without them.
fn bad_files_fail(files: &Files, url: &str, [ca_option, cert_option, key_option]: [&str; 3], good: [&str; 2]) {
    let [ca, cert] = good;
    let (empty, other, missing) = (files.empty(), files.other_key(), files.missing());
    for (options, told) in [
        (
            format!("{ca_option}={missing}"),
            format!("names the CA file {missing:?}, which cannot be read: No such file or directory (os error 2)"),
        ),
        (format!("{ca_option}={empty}"), format!("names the CA file {empty:?}, which has no certificate in it (PEM)")),
        (
            format!("{ca_option}={ca}&{cert_option}={empty}&{key_option}={other}"),
            format!("names the certificate file {empty:?}, which has no certificate in it (PEM)"),
        ),
        (
            format!("{ca_option}={ca}&{cert_option}={cert}&{key_option}={empty}"),
            format!("names the key file {empty:?}, which has no private key in it (PEM)"),
        ),
        (
            format!("{ca_option}={ca}&{cert_option}={cert}&{key_option}={other}"),
            format!("names the key file {other:?}, which is not the key of the certificate in {cert:?}"),
        ),
        (
            format!("{ca_option}={ca}&{cert_option}={cert}"),
            format!("has one of {cert_option} and {key_option}: a client certificate needs both"),
        ),
    ] {
        let url = format!("{url}&{options}");
        let shown = url.replace(LOGIN, "locker:***@");
        // What a key is called is shown to nobody: it comes last.
        let shown = shown.split_once("key=").map_or_else(|| shown.clone(), |(before, _)| format!("{before}key=***"));
        fails(&url, 64, format!("{shown:?} {told}"));
    }
}

#[test]
fn files_that_etcd_cannot_use_are_64() {
    let (files, server) = (Files::new(), etcd());
    let (ca, (cert, _)) = (server.ca_path(), server.client_certificate());
    let url = format!("etcd://{LOGIN}{}?tls=true", server.address(0));
    bad_files_fail(&files, &url, ["ca", "cert", "key"], [&ca.display().to_string(), &cert.display().to_string()]);
}

#[test]
fn files_that_zookeeper_cannot_use_are_64() {
    let (files, server) = (Files::new(), zookeeper());
    let (ca, (cert, _)) = (server.ca_path(), server.client_certificate());
    let url = format!("zookeeper://{LOGIN}{}/x?tls=true", server.servers());
    bad_files_fail(&files, &url, ["ca", "cert", "key"], [&ca.display().to_string(), &cert.display().to_string()]);
}

#[test]
fn files_that_postgres_cannot_use_are_64() {
    let (files, server) = (Files::new(), postgres());
    let (ca, (cert, _)) = (server.ca_path(), server.client_certificate());
    let url = format!("postgres://{LOGIN}127.0.0.1:{}/postgres?sslmode=verify-full", server.port());
    let options = ["sslrootcert", "sslcert", "sslkey"];
    bad_files_fail(&files, &url, options, [&ca.display().to_string(), &cert.display().to_string()]);
}

#[test]
fn tls_where_etcd_has_none_is_64() {
    let server = shared::etcd();
    let told = format!(
        "cannot talk to etcd at {}: it speaks without TLS there: leave tls=true out, and ca=, cert= and key=",
        server.address(0)
    );
    is_refused(&format!("etcd://{}?tls=true", server.address(0)), 64, &told, "");
}

#[test]
fn tls_that_etcd_wants_is_64() {
    let at = etcd().address(0);
    let told = format!(
        "cannot talk to etcd at {at}: it speaks TLS there: add tls=true, and ca=FILE if its CA is not the system's"
    );
    is_refused(&format!("etcd://{at}"), 64, told, "");
}

#[test]
fn an_etcd_that_is_not_trusted_is_69() {
    let at = etcd().address(0);
    let told = format!(
        "the certificate of etcd at {at} is signed by nobody who is trusted: name the file of its CA by ca=FILE"
    );
    let cause = "transport error: invalid peer certificate: UnknownIssuer";
    is_refused(&format!("etcd://{LOGIN}{at}?tls=true"), 69, told, cause);
}

#[test]
fn a_login_that_etcd_wants_is_69() {
    let (at, ca) = (etcd().address(0), etcd().ca_path());
    let url = format!("etcd://{at}?tls=true&ca={}", ca.display());
    let cause = format!("{at}: etcdserver: user name is empty");
    is_refused(&url, 69, "etcd wants a login: write etcd://USER:PASSWORD@HOST", &cause);
}

/// Where ZooKeeper speaks TLS.
fn zookeeper_by_tls() -> String {
    let url = zookeeper().tls_url("/x");
    url.trim_start_matches("zookeeper://").split('/').next().unwrap().to_owned()
}

#[test]
fn tls_where_zookeeper_has_none_is_64() {
    let (at, ca) = (zookeeper().servers(), zookeeper().ca_path());
    let told = format!(
        "cannot talk to ZooKeeper at {at}: it speaks without TLS there: leave tls=true out, and ca=, cert= and key=; or name its secureClientPort"
    );
    is_refused(&format!("zookeeper://{at}/x?tls=true&ca={}", ca.display()), 64, told, "");
}

#[test]
fn tls_that_zookeeper_wants_is_64() {
    let at = zookeeper_by_tls();
    let told =
        format!("cannot talk to ZooKeeper at {at}: it speaks TLS there: add tls=true&ca=FILE, or name its clientPort");
    is_refused(&format!("zookeeper://{at}/x"), 64, told, "");
}

#[test]
fn a_zookeeper_that_is_not_trusted_is_69() {
    let (at, stranger) = (zookeeper_by_tls(), shared::tls().ca_path());
    let told = format!(
        "the certificate of ZooKeeper at {at} is signed by nobody who is trusted: name the file of its CA by ca=FILE"
    );
    let url = format!("zookeeper://{at}/x?tls=true&ca={}", stranger.display());
    is_refused(&url, 69, told, "invalid peer certificate: BadSignature");
}

#[test]
fn a_certificate_that_zookeeper_wants_is_69() {
    let (at, ca) = (zookeeper_by_tls(), zookeeper().ca_path());
    let told = format!("ZooKeeper at {at} wants a client's certificate that it trusts: name one by cert=FILE&key=FILE");
    let url = format!("zookeeper://{at}/x?tls=true&ca={}", ca.display());
    is_refused(&url, 69, told, "received fatal alert: BadCertificate");
}

#[test]
fn a_login_that_zookeeper_wants_is_69() {
    let server = Zookeeper::builder().members(1).sasl("locker", "s3cret,with=chars").start();
    let url = format!("zookeeper://{}/x", server.servers());
    let told = "ZooKeeper wants a login: write zookeeper://USER:PASSWORD@HOST/CHROOT?auth=sasl";
    is_refused(&url, 69, told, "authentication failed");
}

#[test]
fn tls_where_postgres_has_none_is_64() {
    let at = format!("127.0.0.1:{}", shared::postgres().port());
    let told =
        format!("cannot talk to PostgreSQL at {at}: it speaks without TLS there: write sslmode=disable, or prefer");
    let cause = "error performing TLS handshake: server does not support TLS";
    for mode in ["require", "verify-ca", "verify-full"] {
        let ca = postgres().ca_path();
        let url = format!("postgres://testkit@{at}/postgres?sslmode={mode}&sslrootcert={}", ca.display());
        is_refused(&url, 64, &told, cause);
    }
}

#[test]
fn tls_that_postgres_wants_is_64() {
    let at = format!("127.0.0.1:{}", postgres().port());
    let told = format!(
        "cannot talk to PostgreSQL at {at}: it lets this user in by TLS alone: write sslmode=require, or verify-full"
    );
    let cause = "db error: FATAL: no pg_hba.conf entry for host \"127.0.0.1\", user \"locker\", database \"postgres\", no encryption";
    is_refused(&format!("postgres://{LOGIN}{at}/postgres?sslmode=disable"), 64, told, cause);
}

#[test]
fn a_postgres_that_is_not_trusted_is_69() {
    let at = format!("127.0.0.1:{}", postgres().port());
    let stranger = shared::tls().ca_path();
    let told = format!(
        "the certificate of PostgreSQL at {at} is signed by nobody who is trusted: name the file of its CA by sslrootcert=FILE"
    );
    let cause = "error performing TLS handshake: invalid peer certificate: BadSignature";
    for mode in ["require", "verify-ca", "verify-full"] {
        let options = format!("sslmode={mode}&sslrootcert={}", stranger.display());
        is_refused(&format!("postgres://{LOGIN}{at}/postgres?{options}"), 69, &told, cause);
    }
}

#[test]
fn a_password_that_postgres_wants_is_69() {
    let url = format!("postgres://locker@127.0.0.1:{}/postgres", postgres().port());
    is_refused(&url, 69, "PostgreSQL wants a password: write postgres://USER:PASSWORD@HOST/DATABASE", "");
}

#[test]
fn a_certificate_that_postgres_wants_is_69() {
    let url = format!("postgres://tenure%20client@127.0.0.1:{}/postgres", postgres().port());
    let told = "PostgreSQL wants a certificate of this user: name one by sslcert=FILE&sslkey=FILE";
    is_refused(&url, 69, told, "db error: FATAL: connection requires a valid client certificate");
}
