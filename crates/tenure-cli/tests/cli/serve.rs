//! `tenure serve`: started, told to read its files again, and what it says.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::servers::shared;

use crate::served::{Served, certificates, claim, random, token, wish};
use crate::support::{Done, Store, eventually};

#[test]
fn tokens_are_made_read_again_and_a_broken_file_changes_nothing() {
    let store = Store::new();
    let file = store.file("tokens.toml");
    let (orders, entry) = token(&["orders", "--may", "acquire,read", "--prefix", "orders/"]);
    fs::write(&file, &entry).unwrap();
    let served = Served::start(&store, &["--tokens", file.to_str().unwrap()]);
    let tries = |secret: &str, name: &str| served.call("POST", "/v1/acquire", secret, wish(name, "o", 0)).0;
    assert_eq!((tries(&orders, "orders/1"), tries(&orders, "jobs/1"), tries("", "orders/1")), (200, 403, 401));
    let broken = served.call("DELETE", "/v1/lock?name=orders/1&token=1", &orders, Value::Null).0;
    assert_eq!(broken, 403, "it may not break");

    // A broken file changes nothing and says so.
    let (jobs, more) = token(&["jobs"]);
    assert_eq!(tries(&jobs, "jobs/1"), 401);
    fs::write(&file, format!("{entry}{more}surprise = 1\n")).unwrap();
    served.signal(Signal::HUP);
    eventually("it says so", || served.said().contains("nothing was changed"));
    assert!(served.said().contains("surprise"), "{}", served.said());
    assert_eq!((tries(&orders, "orders/1"), tries(&jobs, "jobs/1")), (200, 401));

    // One that is fine counts, at once and whole.
    fs::write(&file, format!("{entry}{more}")).unwrap();
    served.signal(Signal::HUP);
    eventually("the new token counts", || tries(&jobs, "jobs/1") == 200);
    assert_eq!(tries(&orders, "orders/1"), 200);
    fs::write(&file, &more).unwrap();
    served.signal(Signal::HUP);
    eventually("the old token is gone", || tries(&orders, "orders/1") == 401);
    eventually("it says whose claims end", || served.said().contains("orders is gone"));
    assert!(!served.said().contains(&orders) && !served.said().contains(&jobs), "{}", served.said());
}

#[test]
fn what_cannot_be_served_is_a_mistake_of_usage() {
    let store = Store::new();
    store.tenure("serve --listen 0.0.0.0:0").exits(64).says("--tokens");
    Store::on("http://127.0.0.1:1").tenure("serve --listen 127.0.0.1:0").exits(64).says("service itself");
    Store::on("https://127.0.0.1:1").tenure("serve --listen 127.0.0.1:0").exits(64).says("service itself");
    store.tenure("serve --listen 127.0.0.1:0 --tokens missing.toml").exits(64).says("missing.toml");
    store.tenure("serve --listen 127.0.0.1:0 --tls-cert a.pem --tls-key b.pem").exits(64).says("a.pem");
    store.tenure("serve token x --may write").exits(64);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    store.tenure(&format!("serve --listen {}", taken.local_addr().unwrap())).exits(69).says("cannot listen");
}

#[test]
fn certificates_of_both_sides_count_and_are_read_again() {
    let store = Store::new();
    let path = |file: &str| store.file(file).to_str().unwrap().to_owned();
    for authority in ["old", "new"] {
        certificates(store.file("").as_path(), authority);
    }
    for end in ["crt", "key"] {
        fs::copy(path(&format!("old-server.{end}")), path(&format!("now.{end}"))).unwrap();
    }
    let (cert, key, ca) = (path("now.crt"), path("now.key"), path("old-authority.crt"));
    let served = Served::start(&store, &["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca]);
    let over = |ca: &str, client: Option<&str>, limited: bool| -> Done {
        let mut url = format!("https://{}?ca={}", served.address, path(&format!("{ca}-authority.crt")));
        if let Some(client) = client {
            url += &format!(
                "&cert={}&key={}",
                path(&format!("{client}-client.crt")),
                path(&format!("{client}-client.key"))
            );
        }
        // Whoever is refused would try for longer without a limit.
        Store::on(url).tenure(if limited { "acquire x --ttl 5s --wait 500ms" } else { "show x --json" })
    };
    over("old", Some("old"), false).exits(0);
    over("old", None, true).exits(69);
    over("old", Some("new"), true).exits(69);
    over("new", Some("old"), true).exits(69);

    // A key that does not fit changes nothing and says so.
    fs::copy(path("new-server.key"), &key).unwrap();
    served.signal(Signal::HUP);
    eventually("it says so", || served.said().contains("nothing was changed"));
    over("old", Some("old"), false).exits(0);
    fs::copy(path("new-server.crt"), &cert).unwrap();
    served.signal(Signal::HUP);
    eventually("the new certificate counts", || over("new", Some("old"), false).code == 0);
    over("old", Some("old"), true).exits(69);
}

#[test]
fn a_connection_that_a_certificate_let_in_ends_when_certificates_are_read_again() {
    let store = Store::new();
    let path = |file: &str| store.file(file).to_str().unwrap().to_owned();
    certificates(store.file("").as_path(), "our");
    let (cert, key, ca) = (path("our-server.crt"), path("our-server.key"), path("our-authority.crt"));
    let served = Served::start(&store, &["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca]);
    let mut kept = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &served.address, "-CAfile", &ca])
        .args(["-cert", &path("our-client.crt"), "-key", &path("our-client.key")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    kept.stdin.as_mut().unwrap().write_all(request).unwrap();
    let mut told = String::new();
    let mut answers = BufReader::new(kept.stdout.take().unwrap());
    answers.read_line(&mut told).unwrap();
    assert!(told.contains("200"), "{told}");
    assert!(kept.try_wait().unwrap().is_none(), "it is kept open");
    served.signal(Signal::HUP);
    eventually("it is closed", || kept.try_wait().unwrap().is_some());
}

#[test]
fn a_certificate_counts_as_the_token_of_the_name_in_it() {
    let store = Store::new();
    let path = |file: &str| store.file(file).to_str().unwrap().to_owned();
    certificates(store.file("").as_path(), "our");
    let (cert, key, ca) = (path("our-server.crt"), path("our-server.key"), path("our-authority.crt"));
    let (_, client) = token(&["client", "--may", "acquire,read", "--prefix", "orders/"]);
    let (secret, jobs) = token(&["jobs", "--may", "acquire"]);
    fs::write(path("tokens.toml"), format!("{client}{jobs}")).unwrap();
    let tokens = path("tokens.toml");
    let served =
        Served::start(&store, &["--tokens", &tokens, "--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca]);
    let options = format!("?ca={ca}&cert={}&key={}", path("our-client.crt"), path("our-client.key"));
    let certified = Store::on(format!("https://{}{options}", served.address));
    certified.tenure("acquire orders/1 --ttl 60s --owner o").exits(0);
    certified.tenure("acquire jobs/1 --ttl 60s").exits(69).says("client may acquire only names");
    // A token that is sent counts instead.
    let with_token = Store::on(format!("https://:{secret}@{}{options}", served.address));
    with_token.tenure("acquire jobs/1 --ttl 60s").exits(0);
    with_token.tenure("release orders/1 --owner o").exits(69).says("may not read");
    certified.tenure("release orders/1 --owner o").exits(0);
    // A name that no token has is nobody's, whoever has signed it.
    fs::write(&tokens, jobs).unwrap();
    served.signal(Signal::HUP);
    eventually("the name is gone", || served.said().contains("client is gone"));
    certified.tenure("acquire orders/1 --ttl 60s").exits(69).says("no token was sent");
}

#[test]
fn metrics_tell_the_scheme_of_the_store_and_the_groups_that_are_named() {
    let store = Store::on(shared::cluster().url());
    let served = Served::start(&store, &["--groups", "orders,jobs"]);
    for name in [random("orders/x"), random("users/x")] {
        assert_eq!(served.post("/v1/acquire", wish(&name, "holder", 0)).0, 200);
        assert_eq!(served.post("/v1/release", claim(&name, "holder")).0, 200);
    }
    let granted = |group: &str, count: u32| {
        let labels = format!("store=\"redis+cluster\",group=\"{group}\"");
        format!("tenure_acquire_total{{{labels},result=\"granted\"}} {count}\n")
    };
    eventually("it is told", || {
        let (_, told) = served.call("GET", "/metrics", "", Value::Null);
        let told = told.as_str().unwrap();
        [granted("orders", 1), granted("jobs", 0), granted("other", 1)].iter().all(|line| told.contains(line))
    });
}

#[test]
fn neither_tokens_nor_owners_are_logged() {
    let store = Store::on(shared::redis().url());
    let file = store.file("tokens.toml");
    let (secret, entry) = token(&["worker", "--may", "acquire,read,break"]);
    fs::write(&file, entry).unwrap();
    let mut served = Served::start(&store, &["--verbose", "--tokens", file.to_str().unwrap()]);
    let (name, owner) = (random("quiet"), random("owner"));
    let wait = |owner: &str| wish(&name, owner, 300);
    for (path, body, status) in [
        ("/v1/acquire", wait(&owner), 200),
        ("/v1/acquire", wait(&format!("{owner}-2")), 409),
        ("/v1/acquire", json!({ "name": name, "owner": owner, "ttl_ms": -1 }), 400),
        ("/v1/renew", claim(&name, &owner), 200),
        ("/v1/renew", json!({ "name": name, "owner": format!("{owner} ") }), 400),
        ("/v1/release", json!({ "name": name, "owner": owner }), 400),
        ("/v1/release", claim(&name, &owner), 200),
        ("/v1/release", claim(&name, &owner), 410),
    ] {
        let (told, answer) = served.call("POST", path, &secret, body);
        assert_eq!(told, status, "{path}: {answer}");
    }
    let (_, held) = served.call("POST", "/v1/acquire", &secret, wait(&owner));
    let broken = format!("/v1/lock?name={name}&token={}", held["token"]);
    assert_eq!(served.call("DELETE", &broken, &secret, Value::Null).0, 200);
    assert_eq!(served.call("POST", "/v1/acquire", &format!("{secret}x"), wait(&owner)).0, 401);
    served.signal(Signal::HUP);
    eventually("it has read them again", || served.said().contains("again"));
    served.signal(Signal::TERM);
    assert_eq!(served.code(), Some(0));
    let said = served.said();
    assert!(said.contains("/v1/acquire") && said.contains(&name), "requests are logged: {said}");
    assert!(!said.contains(&secret) && !said.contains(secret.trim_start_matches("tenure_")), "{said}");
    assert!(!said.contains(&owner), "{said}");
}

#[test]
fn the_limits_that_help_lists_are_those_that_are_kept() {
    use tenure_server::{
        ARRIVAL_MAX, BODY_BYTES_MAX, HEAD_BYTES_MAX, IDLE_MAX, Limits, PAGE_MAX, RENEWAL_BYTES_MAX, RENEWALS_MAX,
        STREAMS_MAX, WAIT_MAX,
    };
    let help = Store::new().tenure("serve --help").exits(0).text().split_whitespace().collect::<Vec<_>>().join(" ");
    let (kib, mib, thousand) = (1024, 1024 * 1024, |number: usize| format!("{},{:03}", number / 1000, number % 1000));
    let Limits { connections, waiters, streams, idle, .. } = Limits::default();
    assert_eq!(idle, IDLE_MAX);
    for limit in [
        format!("a body of {} KiB", BODY_BYTES_MAX / kib),
        format!("a renewal of many: {} MiB and {} claims", RENEWAL_BYTES_MAX / mib, thousand(RENEWALS_MAX)),
        format!("a head of {} KiB", HEAD_BYTES_MAX / kib),
        format!("{} s for a body to arrive", ARRIVAL_MAX.as_secs()),
        format!("{} s for a head to arrive", IDLE_MAX.as_secs()),
        format!("a wait of {} s", WAIT_MAX.as_secs()),
        format!("{} names in a page", thousand(PAGE_MAX)),
        format!("{STREAMS_MAX} requests at once on an HTTP/2 connection of which {} may wait", STREAMS_MAX / 4 * 3),
        format!("[default: {connections}]"),
        format!("[default: {waiters}]"),
        format!("[default: {streams}]"),
    ] {
        assert!(help.contains(&limit), "{limit:?} is not in {help}");
    }
}
