//! How many files the service may open: waiters are refused before renewals and releases run out of them.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::ops::Range;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tenure_testkit::servers::shared;

use crate::served::{Served, call, claim, random, request, wish};
use crate::support::{Store, eventually};

/// How many files a process may open, now and at most, as the kernel has it.
fn files_of(served: &Served) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{}/limits", served.child.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().map(str::to_owned);
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Lets this process have so many connections.
fn room_for(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let most = limit.maximum.unwrap_or(u64::MAX);
    // The service has as many, and some for its store.
    assert!(most > connections as u64 * 3 / 2, "this test needs more files than {most}: raise `ulimit -Hn`");
}

/// Connections with an acquire that waits, or was refused; none was read.
fn wait_for(name: &str, numbers: Range<usize>, served: &Served) -> Vec<TcpStream> {
    let waiters = numbers.map(|number| {
        let mut wish = wish(name, &format!("waiter-{number}"), 50_000);
        wish["ttl_ms"] = json!(60_000);
        let request = request("POST", "/v1/acquire", "", &wish).replace("connection: close\r\n", "");
        let mut stream = TcpStream::connect(&served.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    });
    waiters.collect()
}

#[test]
fn as_many_files_are_opened_as_the_system_allows() {
    let store = Store::new();
    let served = Served::start_limited(&store, "-S -n 256", &["--connections", "128"]);
    let (now, most) = files_of(&served);
    assert_eq!(now, most, "the limit is raised as far as it goes");
    assert!(!served.said().contains("connections"), "nothing had to give: {}", served.said());
}

#[test]
fn where_few_files_may_be_opened_waiters_are_refused_before_renewals() {
    let store = Store::on(shared::redis().url());
    let served = Served::start_limited(&store, "-n 256", &[]);
    assert_eq!(files_of(&served), ("256".to_owned(), "256".to_owned()));
    let said = served.said();
    assert!(said.contains("256") && said.contains("--connections") && said.contains("ulimit -n"), "{said}");
    let name = random("few");
    assert_eq!(served.post("/v1/acquire", wish(&name, "holder", 0)).0, 200);
    // More than it may open in all.
    let waiters = wait_for(&name, 0..300, &served);
    eventually("one too many is refused", || {
        let told = call(&served.address, "POST", "/v1/acquire", "", wish(&name, "late", 1_000));
        let (status, answer) = told.expect("an answer");
        assert!([409, 429].contains(&status), "{status}: {answer}");
        status == 429
    });
    let waiting = served.waiters(&name).len();
    assert!((64..192).contains(&waiting), "{waiting} wait: most of those who may, and not all");
    for _ in 0..20 {
        let (status, answer) = served.post("/v1/renew", claim(&name, "holder"));
        assert_eq!(status, 200, "{answer}");
    }
    assert_eq!(served.post("/v1/release", claim(&name, "holder")).0, 200);
    eventually("the next one holds", || {
        let (status, view) = served.call("GET", &format!("/v1/lock?name={name}"), "", Value::Null);
        status == 200 && view["holders"].as_array().unwrap().len() == 1
    });
    assert!(!served.said().contains("could not be taken"), "{}", served.said());
    drop(waiters);
}

#[test]
fn two_thousand_waiters_neither_delay_nor_refuse_a_renewal() {
    renewed_beside(2_000);
}

#[test]
#[ignore = "night: it takes a minute until 10,000 wait"]
fn ten_thousand_waiters_neither_delay_nor_refuse_a_renewal() {
    renewed_beside(10_000);
}

fn renewed_beside(many: usize) {
    const NAMES: usize = 20;
    room_for(many);
    let store = Store::on(shared::redis().url());
    let served = Served::start(&store, &[]);
    let (held, names) = (random("held"), random("waited"));
    let mut wanted = wish(&held, "holder", 0);
    // A renewal that took half of this would be as good as refused: it would be told by the end of the lease.
    wanted["ttl_ms"] = json!(10_000);
    let (status, first) = served.post("/v1/acquire", wanted);
    assert_eq!(status, 200, "{first}");
    let renew = || {
        let (status, answer) = served.post("/v1/renew", claim(&held, "holder"));
        assert_eq!((status, &answer["token"]), (200, &first["token"]), "{answer}");
        assert!(answer["expires_in_ms"].as_u64().unwrap() > 5_000, "it was answered late: {answer}");
    };
    let name = |number: usize| format!("{names}-{number}");
    let each = many / NAMES;
    let mut waiters = Vec::new();
    for number in 0..NAMES {
        let held = json!({ "name": name(number), "owner": "holder", "claim": "1", "ttl_ms": 600_000 });
        assert_eq!(served.post("/v1/acquire", held).0, 200);
        for from in (0..each).step_by(50) {
            waiters.extend(wait_for(&name(number), from..each.min(from + 50), &served));
            renew();
        }
    }
    for number in 0..NAMES {
        eventually("all of them wait", || {
            renew();
            served.waiters(&name(number)).len() == each
        });
    }
    assert_eq!(waiters.len(), many);
    for _ in 0..50 {
        renew();
    }
    assert_eq!(served.post("/v1/release", claim(&held, "holder")).0, 200);
}
