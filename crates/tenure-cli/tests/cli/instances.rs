//! Many instances over one store, none of which matters: stopped, killed and hanging, while others wait and work.

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::servers::shared;

use crate::served::{Half, Served, call, claim, random, wish};
use crate::support::{Store, eventually};

/// Longer than any test takes.
const LONG_MS: u64 = 120_000;

/// Clients that take one name in turn, as fast as they can.
struct Load {
    clients: Vec<JoinHandle<()>>,
    /// How often one of them was inside.
    count: Arc<AtomicUsize>,
}

impl Load {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 12;

    /// Each works at the first of these addresses, and at the next when that is stopping or does not answer.
    fn begin(addresses: &[&str]) -> Self {
        let name = random("load");
        let addresses: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
        let (inside, fence, count) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..Self::CLIENTS).map(|client| {
            let (addresses, name) = (addresses.clone(), name.clone());
            let (inside, fence, count) = (inside.clone(), fence.clone(), count.clone());
            thread::spawn(move || {
                for round in 0..Self::ROUNDS {
                    let owner = format!("client-{client}-{round}");
                    let held = repeat(&addresses, "/v1/acquire", &wish(&name, &owner, 20_000));
                    let token = held["token"].as_u64().unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    assert!(fence.swap(token, Ordering::SeqCst) < token, "an older token after a newer one");
                    count.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(2));
                    inside.store(false, Ordering::SeqCst);
                    repeat(&addresses, "/v1/release", &claim(&name, &owner));
                }
            })
        });
        let load = Self { clients: clients.collect(), count };
        let some = Self::CLIENTS * Self::ROUNDS / 4;
        eventually("some have been inside", || load.count.load(Ordering::SeqCst) >= some);
        load
    }

    fn ends(self) {
        for client in self.clients {
            client.join().unwrap();
        }
        assert_eq!(self.count.load(Ordering::SeqCst), Self::CLIENTS * Self::ROUNDS, "no lock is lost");
    }
}

/// Repeats a request, with its owner and claim, until it has been answered as it should.
fn repeat(addresses: &[String], path: &str, body: &Value) -> Value {
    let mut answer = Value::Null;
    let mut at = addresses.iter().cycle();
    let mut address = at.next().unwrap();
    eventually("it is answered", || {
        let told = call(address, "POST", path, "", body.clone());
        let Some((status, told)) = told else {
            address = at.next().unwrap();
            return false;
        };
        answer = told;
        match status {
            200 => true,
            // A release that was made, and whose answer was lost.
            410 => path == "/v1/release",
            409 => false,
            503 => {
                address = at.next().unwrap();
                false
            }
            _ => panic!("{status}: {answer}"),
        }
    });
    answer
}

/// Those who wait for a name that somebody holds, each with an owner of its own, in the order in which they came.
struct Queue {
    name: String,
    waiters: Vec<JoinHandle<()>>,
    granted: Arc<Mutex<Vec<usize>>>,
    /// How many requests that waited were cut off, or sent away.
    repeated: Arc<AtomicUsize>,
    /// As a look has it.
    order: Vec<String>,
}

impl Queue {
    /// So many wait at the first of these addresses, and at the next when that sends them away or does not answer.
    fn begin(waiters: usize, addresses: &[&str], look: &Served) -> Self {
        let name = random("queue");
        let held = json!({ "name": name, "owner": "holder", "claim": "1", "ttl_ms": LONG_MS });
        assert_eq!(look.post("/v1/acquire", held).0, 200);
        let (granted, repeated) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let mut queue = Self { name, waiters: Vec::new(), granted, repeated, order: Vec::new() };
        for number in 0..waiters {
            let addresses: Vec<String> = addresses.iter().map(|&address| address.to_owned()).collect();
            let (name, granted, repeated) = (queue.name.clone(), queue.granted.clone(), queue.repeated.clone());
            queue.waiters.push(thread::spawn(move || {
                wait_in_line(&name, number, &addresses, &repeated);
                granted.lock().unwrap().push(number);
                repeat(&addresses[addresses.len() - 1..], "/v1/release", &claim(&name, &format!("waiter-{number}")));
            }));
            eventually("it waits", || look.waiters(&queue.name).len() == number + 1);
        }
        queue.order = look.waiters(&queue.name);
        queue
    }

    /// The owners of those who wait, in order, and the numbers of their claims: a request that repeats another has a
    /// new one.
    fn look(&self, at: &Served) -> (Vec<String>, Vec<u64>) {
        let (status, view) = at.call("GET", &format!("/v1/lock?name={}", self.name), "", Value::Null);
        assert_eq!(status, 200, "{view}");
        let (mut owners, mut numbers) = (Vec::new(), Vec::new());
        for waiter in view["waiters"].as_array().unwrap() {
            let owner = waiter["owner"].as_str().unwrap().to_owned();
            // On etcd a request that repeats another stands behind it until it has found it.
            if !owners.contains(&owner) {
                owners.push(owner);
                numbers.push(waiter["claim"]["number"].as_u64().unwrap());
            }
        }
        (owners, numbers)
    }

    /// Waits until so many of them wait on by another request than before. All stand in their places all the while.
    fn moves_on(&self, before: &[u64], many: usize, look: &Served) {
        eventually("they wait on elsewhere", || {
            let (owners, numbers) = self.look(look);
            assert_eq!(owners, self.order, "every place is kept");
            let moved = numbers.iter().zip(before).filter(|(now, before)| now != before).count();
            self.repeated.load(Ordering::SeqCst) >= many && moved >= many
        });
    }

    /// The holder goes: all are granted the name, in the order in which they came.
    fn ends(self, at: &Served) {
        assert_eq!(at.post("/v1/release", claim(&self.name, "holder")).0, 200);
        let waiters = self.waiters.len();
        for waiter in self.waiters {
            waiter.join().unwrap();
        }
        assert_eq!(*self.granted.lock().unwrap(), (0..waiters).collect::<Vec<_>>());
    }
}

/// Waits for a name by the same claim until it is granted, whatever becomes of the instances.
fn wait_in_line(name: &str, number: usize, addresses: &[String], repeated: &AtomicUsize) {
    let mut body = wish(name, &format!("waiter-{number}"), 50_000);
    body["queue"] = json!(true);
    let mut at = addresses.iter().cycle();
    let mut address = at.next().unwrap();
    let mut granted = false;
    for _ in 0..100 {
        match call(address, "POST", "/v1/acquire", "", body.clone()) {
            Some((200, _)) => {
                granted = true;
                break;
            }
            Some((202, _)) => {}
            Some((409, answer)) => assert_eq!(answer["kind"], "superseded", "{answer}"),
            Some((503, answer)) => {
                assert_eq!(answer["owner"], body["owner"], "{answer}");
                repeated.fetch_add(1, Ordering::SeqCst);
                address = at.next().unwrap();
            }
            None => {
                repeated.fetch_add(1, Ordering::SeqCst);
                address = at.next().unwrap();
            }
            Some((status, answer)) => panic!("{status}: {answer}"),
        }
    }
    assert!(granted, "granted after a hundred requests");
}

#[test]
fn an_instance_on_redis_that_is_told_to_stop_under_load_loses_no_place() {
    stops_under_load(&Store::on(shared::redis().url()));
}

#[test]
fn an_instance_on_etcd_that_is_told_to_stop_under_load_loses_no_place() {
    stops_under_load(&Store::on(shared::etcd().url()));
}

fn stops_under_load(store: &Store) {
    const WAITERS: usize = 12;
    let (mut a, b) = (Served::start(store, &[]), Served::start(store, &[]));
    let (kept, given) = (random("kept"), random("given"));
    for name in [&kept, &given] {
        let held = json!({ "name": name, "owner": "o", "claim": "1", "ttl_ms": LONG_MS });
        assert_eq!(a.post("/v1/acquire", held).0, 200);
    }
    let queue = Queue::begin(WAITERS, &[&a.address, &b.address], &b);
    let load = Load::begin(&[&a.address, &b.address]);
    let (_, before) = queue.look(&b);
    // As long as this renewal is under way the instance stays.
    let half = Half::of(&a.address, "/v1/renew", &claim(&kept, "o"));
    a.signal(Signal::TERM);
    let new = wish(&random("new"), "o", 0);
    eventually("no new claims are taken", || {
        let (status, answer) = a.post("/v1/acquire", new.clone());
        assert!(status == 200 || (status == 503 && answer["owner"] == "o"), "{status}: {answer}");
        status == 503
    });
    assert_eq!(a.post("/v1/renew", claim(&kept, "o")).0, 200, "renewals are served to the end");
    assert_eq!(a.post("/v1/release", claim(&given, "o")).0, 200, "and releases");
    assert_eq!(half.rest().0, 200, "and what was under way");
    assert_eq!(a.code(), Some(0), "{}", a.said());
    queue.moves_on(&before, WAITERS, &b);
    assert_eq!(b.post("/v1/renew", claim(&kept, "o")).0, 200);
    load.ends();
    queue.ends(&b);
}

#[test]
fn renewals_and_releases_are_served_by_others_when_an_instance_is_killed() {
    let store = Store::on(shared::redis().url());
    let (killed, other) = (Served::start(&store, &[]), Served::start(&store, &[]));
    let name = random("killed");
    assert_eq!(killed.post("/v1/acquire", wish(&name, "holder", 0)).0, 200);
    let first = {
        let (name, address) = (name.clone(), killed.address.clone());
        thread::spawn(move || call(&address, "POST", "/v1/acquire", "", wish(&name, "first", 50_000)))
    };
    eventually("the first waits", || other.waiters(&name).len() == 1);
    let second = {
        let (name, address) = (name.clone(), other.address.clone());
        thread::spawn(move || call(&address, "POST", "/v1/acquire", "", wish(&name, "second", 50_000)).unwrap())
    };
    eventually("the second waits", || other.waiters(&name).len() == 2);
    let before = other.waiters(&name);
    killed.signal(Signal::KILL);
    assert!(first.join().unwrap().is_none(), "nobody answered");
    assert_eq!(other.waiters(&name), before, "the first keeps its place");
    let first = {
        let (name, address) = (name.clone(), other.address.clone());
        thread::spawn(move || call(&address, "POST", "/v1/acquire", "", wish(&name, "first", 50_000)).unwrap())
    };
    assert_eq!(other.post("/v1/renew", claim(&name, "holder")).0, 200);
    assert_eq!(other.post("/v1/release", claim(&name, "holder")).0, 200);
    let (status, held) = first.join().unwrap();
    assert_eq!(status, 200, "{held}");
    assert_eq!(other.post("/v1/release", claim(&name, "first")).0, 200);
    let (status, next) = second.join().unwrap();
    assert!(status == 200 && next["token"].as_u64() > held["token"].as_u64(), "{next} after {held}");
}

/// A plain balancer: connections go to the instances in turn, and to the next if one does not take them.
fn balance(instances: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for (number, inbound) in listener.incoming().enumerate() {
            let Ok(inbound) = inbound else { return };
            let mut targets = instances.iter().cycle().skip(number % instances.len()).take(instances.len());
            let Some(outbound) = targets.find_map(|target| TcpStream::connect(target).ok()) else { continue };
            for (mut from, mut to) in [
                (inbound.try_clone().unwrap(), outbound.try_clone().unwrap()),
                (outbound.try_clone().unwrap(), inbound.try_clone().unwrap()),
            ] {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    // What one side has ended has ended for the other.
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

#[test]
fn one_of_three_instances_on_redis_is_killed_and_neither_locks_nor_places_are_lost() {
    one_of_three_is_killed(&Store::on(shared::redis().url()));
}

#[test]
fn one_of_three_instances_on_etcd_is_killed_and_neither_locks_nor_places_are_lost() {
    one_of_three_is_killed(&Store::on(shared::etcd().url()));
}

fn one_of_three_is_killed(store: &Store) {
    const WAITERS: usize = 9;
    let instances: Vec<Served> = (0..3).map(|_| Served::start(store, &[])).collect();
    let balancer = balance(instances.iter().map(|instance| instance.address.clone()).collect());
    // Nobody else uses the balancer yet: a third of them wait at each instance.
    let queue = Queue::begin(WAITERS, &[&balancer], &instances[1]);
    let load = Load::begin(&[&balancer]);
    let (_, before) = queue.look(&instances[1]);
    instances[0].signal(Signal::KILL);
    queue.moves_on(&before, WAITERS / 3, &instances[1]);
    load.ends();
    assert_eq!(queue.look(&instances[2]).0, queue.order);
    queue.ends(&instances[2]);
}

#[test]
fn a_run_goes_on_at_another_instance_when_one_hangs() {
    let store = Store::on(shared::redis().url());
    let (hangs, answers) = (Served::start(&store, &[]), Served::start(&store, &[]));
    let name = random("hangs");
    let runs = Store::on(format!("http://{},{}", hangs.address, answers.address));
    let running = runs.start(&format!("{name} --ttl 6s"), "until [ -e go ]; do sleep 0.05; done");
    hangs.signal(Signal::STOP);
    // Four renewals take longer than its lease lasts by itself.
    let (mut renewed, mut before) = (0, (None, u64::MAX));
    eventually("it is renewed through the other", || {
        let (status, view) = answers.call("GET", &format!("/v1/lock?name={name}"), "", Value::Null);
        let holder = &view["holders"][0];
        let (token, left) = (holder["token"].as_u64(), holder["expires_in_ms"].as_u64().unwrap_or(0));
        assert!(status == 200 && token.is_some(), "the lease was lost: {view}");
        assert!(before.0.is_none() || before.0 == token, "another holds it: {view}");
        // More is left of it than at the look before.
        renewed += u32::from(left > before.1);
        before = (token, left);
        renewed >= 4
    });
    fs::write(runs.file("go"), "").unwrap();
    running.wait().exits(0);
    hangs.signal(Signal::CONT);
}
