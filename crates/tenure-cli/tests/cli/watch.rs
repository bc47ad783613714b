//! `watch`, over real stores: what is told, to whom, and for how long.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure::Tenure;
use tenure_testkit::servers::{Redis, shared};

use crate::support::{BIN, PATIENCE, Store, done, eventually, keys};

type Lines = Arc<Mutex<Vec<String>>>;

/// A `tenure watch` that has begun to watch.
struct Watching {
    child: Child,
    /// Unless somebody reads it into `told`.
    stdout: Option<ChildStdout>,
    told: Lines,
    said: Lines,
}

fn gather(from: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let gathered = lines.clone();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            gathered.lock().unwrap().push(line);
        }
    });
    lines
}

impl Watching {
    /// Starts it; nobody reads what it tells.
    fn unread(store: &Store, args: &str) -> Self {
        let mut command = store.command(["watch"]);
        command.args(args.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, said) = (child.stdout.take(), gather(child.stderr.take().unwrap()));
        let watching = Self { child, stdout, told: Lines::default(), said };
        eventually("it watches", || watching.says("watching "));
        watching
    }

    fn start(store: &Store, args: &str) -> Self {
        let mut watching = Self::unread(store, args);
        watching.read();
        watching
    }

    fn read(&mut self) {
        self.told = gather(self.stdout.take().unwrap());
    }

    fn says(&self, part: &str) -> bool {
        self.said.lock().unwrap().iter().any(|line| line.contains(part))
    }

    fn told(&self) -> Vec<Value> {
        self.told.lock().unwrap().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until it has told this of a name, and answers it.
    fn until(&self, event: &str, name: &str) -> Value {
        let mut found = Value::Null;
        eventually(&format!("{event} {name}"), || {
            let told = self.told();
            let it = told.iter().find(|told| told["event"] == event && told["name"] == name);
            found = it.cloned().unwrap_or_default();
            it.is_some()
        });
        found
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Watching {
    /// Waits until this was told last; says what was told if it never is.
    fn until_last(&self, event: &str, label: &str) {
        let limit = Instant::now() + PATIENCE;
        while !self.told().last().is_some_and(|told| is_of(told, event, label)) {
            assert!(Instant::now() < limit, "{event} of {label} was not told last: {:#?}", self.told());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_of(told: &Value, event: &str, label: &str) -> bool {
    told["event"] == event && told["label"] == label
}

#[test]
fn a_lock_that_is_granted_waited_for_and_handed_over_is_told_in_every_store() {
    let stores = [
        ("sqlite", Store::new()),
        ("redis", Store::on(shared::redis().url())),
        ("redlock", Store::on(shared::fleet().url())),
        ("etcd", Store::on(shared::etcd().url())),
        ("postgres", Store::on(shared::postgres().url())),
        ("zookeeper", Store::on(shared::zookeeper().url_below("/watched"))),
    ];
    for (kind, store) in stores {
        let watching = Watching::start(&store, "watched/ --json --interval 50ms");
        let holder = store.start("watched/x --ttl 20s --label first", "until [ -e go ]; do sleep 0.02; done");
        let granted = watching.until("granted", "watched/x");
        assert_eq!(granted["label"], "first", "{kind}: {granted}");
        assert!(granted["token"].is_u64() && granted["owner"].is_string(), "{kind}: {granted}");
        let script = "until [ -e end ]; do sleep 0.02; done";
        let waiter = crate::support::Running::of(&mut store.sh_command("watched/x --ttl 20s --label second", script));
        eventually("the next one waits", || watching.told().iter().any(|told| is_of(told, "waiting", "second")));
        std::fs::write(store.file("go"), "").unwrap();
        holder.wait().exits(0);
        let released = watching.until("released", "watched/x");
        assert_eq!((&released["label"], released["held_ms"].is_u64()), (&"first".into(), true), "{kind}: {released}");
        eventually("the next one is granted", || {
            let told = watching.told();
            let next = told.iter().find(|told| is_of(told, "granted", "second"));
            next.is_some_and(|next| next["waited_ms"].is_u64())
        });
        std::fs::write(store.file("end"), "").unwrap();
        waiter.wait().exits(0);
        watching.until_last("released", "second");
        let mut told = watching.told();
        // A claim on its way to a majority is seen waiting, should a look come just then.
        told.retain(|told| !is_of(told, "waiting", "first"));
        let events: Vec<String> = told.iter().map(|told| told["event"].to_string()).collect();
        assert_eq!(events.join(" ").replace('"', ""), "granted waiting released granted released", "{kind}");
    }
}

#[test]
fn a_change_is_one_object_with_these_fields() {
    let store = Store::new();
    store.tenure("acquire old").exits(0);
    let watching = Watching::start(&store, "--json --interval 20ms");
    store.tenure("acquire x --owner me --label boss").exits(0);
    let granted = watching.until("granted", "x");
    let fields = ["at", "by", "event", "held_ms", "label", "name", "owner", "reason", "token", "waited_ms"];
    assert_eq!(keys(&granted), fields);
    assert_eq!((&granted["owner"], &granted["label"]), (&"me".into(), &"boss".into()));
    assert!(granted["at"].as_str().unwrap().ends_with('Z'), "{granted}");
    assert!(watching.told().iter().all(|told| told["name"] != "old"), "what was there before is no change");
}

#[test]
fn people_are_told_a_line_each_and_how_often_it_looks() {
    let store = Store::new();
    let watching = Watching::start(&store, "or");
    assert!(watching.says("names that begin with \"or\"") && watching.says("looking every 500ms"));
    store.tenure("acquire users/1").exits(0);
    store.tenure("acquire orders/1 --owner me --label boss\u{1b}[2J").exits(0);
    store.tenure("release orders/1 --owner me").exits(0);
    store.tenure("acquire orders/2 --label last").exits(0);
    eventually("the last one is told", || watching.told.lock().unwrap().iter().any(|line| line.contains("orders/2")));
    let told = watching.told.lock().unwrap().join("\n");
    assert!(told.contains("  granted   orders/2  last  token "), "{told}");
    assert!(!told.contains("users/1") && !told.contains('\x1b'), "{told}");
}

#[test]
fn what_nobody_renews_expires() {
    let store = Store::new();
    let watching = Watching::start(&store, "--json --interval 20ms");
    store.tenure("acquire x --ttl 1s").exits(0);
    watching.until("granted", "x");
    assert!(watching.until("expired", "x")["held_ms"].is_u64());
}

#[test]
fn a_break_is_told_with_who_and_why() {
    for store in [Store::new(), Store::on(shared::redis().url()), Store::on(shared::postgres().url())] {
        let watching = Watching::start(&store, "breaking --json --interval 50ms");
        store.tenure("acquire breaking --ttl 1m").exits(0);
        watching.until("granted", "breaking");
        done(&mut store.command(["break", "breaking", "--yes", "--reason", "it hangs"])).exits(0);
        let broken = watching.until("broken", "breaking");
        assert_eq!(broken["reason"], "it hangs", "{}", store.url());
        assert!(broken["by"].is_string(), "{broken}");
    }
}

#[test]
fn a_waiter_that_gives_up_is_told() {
    let store = Store::new();
    let _holder = store.start("x --ttl 1m", "sleep 600");
    let watching = Watching::start(&store, "--json --interval 20ms");
    let waiter = store.start_waiter("x", "--label impatient");
    watching.until("waiting", "x");
    waiter.signal(Signal::INT);
    waiter.wait().exits(130);
    assert_eq!(watching.until("left", "x")["label"], "impatient");
}

#[test]
fn a_store_that_goes_away_and_comes_back_is_said_once_each_way() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    store.tenure("acquire x --ttl 24h").exits(0);
    let watching = Watching::start(&store, "--json --interval 50ms");
    redis.kill();
    eventually("it is said that the store is away", || watching.says("looking on"));
    // Several looks fail.
    redis.restart();
    eventually("it is said that it is back", || watching.says("answers again"));
    watching.until("lost", "x");
    store.tenure("acquire y").exits(0);
    watching.until("granted", "y");
    let said = watching.said.lock().unwrap().clone();
    assert_eq!(said.iter().filter(|line| line.contains("looking on")).count(), 1, "{said:?}");
    assert_eq!(said.iter().filter(|line| line.contains("answers again")).count(), 1, "{said:?}");
}

#[test]
fn a_store_that_is_not_there_is_69() {
    let redis = Redis::start();
    redis.kill();
    Store::on(redis.url()).tenure("watch").exits(69).says("Connection refused");
}

#[test]
fn a_reader_that_went_away_ends_it_quietly() {
    let store = Store::new();
    store.tenure("acquire first").exits(0);
    for (reader, act) in [("head -1", true), ("true", false)] {
        let script = format!("set -o pipefail; \"$T\" --on \"$U\" watch --interval 20ms 2>said | {reader} >told");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(store.file(".")).env("T", BIN).env("U", store.url());
        let piped = crate::support::Running::of(&mut command);
        if act {
            eventually("it watches", || {
                std::fs::read_to_string(store.file("said")).is_ok_and(|said| said.contains("watching"))
            });
            store.tenure("acquire x --label boss").exits(0);
        }
        piped.wait().exits(0);
        assert_eq!(store.read("told").contains("boss"), act);
        assert_eq!(store.read("said").lines().count(), 1, "no panic, and no word: {}", store.read("said"));
    }
}

#[test]
fn a_reader_that_is_too_slow_is_told_how_many_changes_it_missed() {
    // More than what is kept for a reader and what a pipe takes, some 1,400 lines.
    const NAMES: usize = 2_000;
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let mut watching = Watching::unread(&store, "--json --interval 50ms");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let held = runtime.block_on(async {
        let tenure = Tenure::connect(store.url()).await.unwrap();
        let lock = |number| tenure.lock(format!("n/{number}")).ttl(Duration::from_secs(600));
        let mut held = Vec::new();
        for number in 0..NAMES {
            held.push(lock(number).acquire().await.unwrap());
        }
        held
    });
    // It goes on looking while nobody reads: a name comes and is seen, whether or not there is room for it.
    eventually("all are seen", || store.tenure("ls n/ --json").exits(0).json().as_array().unwrap().len() == NAMES);
    watching.read();
    let mut told = Vec::new();
    eventually("everything is told or counted", || {
        told = watching.told();
        let missed: u64 = told.iter().filter_map(|told| told["count"].as_u64()).sum();
        let seen = told.iter().filter(|told| told["event"] == "granted").count();
        seen + usize::try_from(missed).unwrap() == NAMES
    });
    assert!(told.iter().any(|told| told["event"] == "dropped"), "some were dropped");
    drop(held);
    runtime.shutdown_background();
}

#[test]
fn a_signal_ends_it() {
    let (unused, used) = (Store::new(), Store::new());
    used.tenure("acquire x").exits(0);
    for store in [unused, used] {
        for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            let mut watching = Watching::start(&store, "");
            watching.signal(signal);
            assert_eq!(watching.child.wait().unwrap().code(), Some(code));
        }
    }
}

#[test]
fn a_signal_ends_it_while_it_connects() {
    // Takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let mut child = Command::new(BIN).args(["watch", "--on", &url]).stdout(Stdio::null()).spawn().unwrap();
    // It listens for signals before it connects.
    drop(silent.accept().unwrap());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn an_interval_has_limits() {
    let store = Store::new();
    for bad in ["0s", "5ms", "2h", "5"] {
        store.tenure(&format!("watch --interval {bad}")).exits(64);
        store.tenure(&format!("top --interval {bad}")).exits(64);
    }
}
