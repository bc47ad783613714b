//! One Redis.

use std::fs::{self, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use tenure_testkit::servers::{Redis, shared, wait_until};

use crate::connection::Connection;

fn panic_of<T>(act: impl FnOnce() -> T + std::panic::UnwindSafe) -> String {
    let panic = catch_unwind(act).err().expect("no panic");
    panic.downcast::<String>().map_or_else(|_| "not a text".to_owned(), |text| *text)
}

#[test]
fn a_redis_that_is_killed_is_gone_and_comes_back_empty_on_its_port() {
    let redis = Redis::start();
    assert_eq!(redis.url(), format!("redis://{}", redis.address()));
    assert_eq!(redis.cli(&["set", "a", "1"]), "OK");
    let pid = redis.pid();
    redis.kill();
    assert!(!redis.answers());
    assert!(TcpStream::connect(redis.address()).is_err());
    redis.restart();
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.cli(&["exists", "a"]), "0");
    assert_eq!(redis.cli(&["info", "server"]).matches(&format!("tcp_port:{}", redis.port())).count(), 1);
}

#[test]
fn a_redis_that_keeps_its_data_has_it_after_a_kill() {
    let redis = Redis::builder().config("appendonly", "yes").config("appendfsync", "always").start();
    assert_eq!(redis.cli(&["set", "a", "1"]), "OK");
    redis.kill();
    redis.restart();
    assert_eq!(redis.cli(&["get", "a"]), "1");
}

#[test]
fn a_restart_waits_until_the_data_is_loaded() {
    const KEYS: usize = 2000;
    // Three thousandths of a second for each key, and questions are answered meanwhile.
    let redis = Redis::builder()
        .config("key-load-delay", "3000")
        .config("loading-process-events-interval-bytes", "1024")
        .start();
    let fill = format!("for i = 1, {KEYS} do redis.call('set', 'key' .. i, i) end");
    redis.cli(&["eval", &fill, "0"]);
    assert_eq!(redis.cli(&["save"]), "OK");
    redis.start_again_without_waiting();
    wait_until("it loads", || {
        TcpStream::connect(redis.address()).is_ok() && redis.cli(&["ping"]).starts_with("LOADING")
    });
    assert!(!redis.answers());
    redis.wait();
    assert_eq!(redis.cli(&["dbsize"]), KEYS.to_string());
}

#[test]
fn a_paused_redis_is_silent_until_it_is_resumed() {
    let redis = Redis::start();
    let mut connection = Connection::to(&redis.address()).unwrap();
    redis.pause();
    connection.say("PING").unwrap();
    assert!(connection.hears_nothing());
    assert!(!redis.answers());
    redis.resume();
    assert_eq!(connection.hear().unwrap(), "+PONG");
    redis.pause();
    redis.kill();
    assert_eq!(connection.hear().unwrap(), "", "a paused server can be killed");
}

#[test]
fn a_server_that_is_not_installed_is_a_failure() {
    let said = panic_of(|| Redis::builder().program("redis-server-of-yesterday").start());
    assert_eq!(said, "redis-server-of-yesterday is not installed: run scripts/setup");
    let said = panic_of(|| Redis::builder().program("/nowhere/redis-server").start());
    assert_eq!(said, "/nowhere/redis-server is not installed: run scripts/setup");
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let said = panic_of(|| Redis::builder().config("no-such-setting", "1").start());
    assert!(said.contains("Bad directive"), "{said}");
}

#[test]
fn other_ports_are_tried_if_one_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let said = panic_of(|| Redis::builder().arg("--port").arg(port.to_string()).start());
    assert_eq!(said, "redis-server found its port taken 10 times");
}

#[test]
fn programs_arguments_and_variables_are_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("another redis");
    fs::write(&program, "#!/bin/sh\necho \"with $VARIABLE\"\nexec redis-server \"$@\"\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let redis = Redis::builder().program(program).arg("--maxclients").arg("77").env("VARIABLE", "a value").start();
    assert_eq!(redis.cli(&["config", "get", "maxclients"]), "maxclients\n77");
    assert!(redis.log().starts_with("with a value\n"), "{}", redis.log());
}

#[test]
fn tls_is_spoken_with_certificates_that_can_be_verified() {
    let redis = Redis::builder().tls().start();
    let other = Redis::builder().tls().start();
    assert_eq!(redis.url(), format!("rediss://{}?ca={}", redis.address(), redis.ca_path().display()));
    assert_eq!(redis.cli(&["ping"]), "PONG");
    assert_ne!(Connection::to(&redis.address()).unwrap().ask("PING").ok().as_deref(), Some("+PONG"));

    let (certificate, key) = redis.client_certificate();
    let verified = |ca: &Path, as_client: bool, name: [&str; 2]| {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-brief", "-verify_return_error", "-connect", &redis.address(), "-CAfile"]).arg(ca);
        if as_client {
            client.arg("-cert").arg(&certificate).arg("-key").arg(&key);
        }
        let client = client.args(name).stdin(Stdio::null()).output().unwrap();
        client.status.success()
    };
    for as_client in [false, true] {
        assert!(verified(&redis.ca_path(), as_client, ["-verify_ip", "127.0.0.1"]));
        assert!(verified(&redis.ca_path(), as_client, ["-verify_hostname", "localhost"]));
    }
    assert!(!verified(&redis.ca_path(), false, ["-verify_hostname", "elsewhere"]));
    assert!(!verified(&other.ca_path(), false, ["-verify_ip", "127.0.0.1"]), "signed by another authority");
}

#[test]
fn the_shared_redis_with_users_lets_the_locker_at_what_is_its_own() {
    let redis = shared::tls();
    let expected =
        format!("rediss://locker:s3cret%2Fwith%40chars@127.0.0.1:{}/3?ca={}", redis.port(), redis.ca_path().display());
    assert_eq!(redis.url(), expected);
    let locker = |command: &[&str]| {
        let login = ["--user", shared::USER, "--pass", shared::PASSWORD, "-n", "3"];
        redis.cli(&[&login, command].concat())
    };
    assert!(locker(&["acl", "list"]).starts_with("NOPERM"));
    assert_eq!(locker(&["set", "tenure:test", "1", "px", "60000"]), "OK");
    assert!(locker(&["set", "test", "1"]).starts_with("NOPERM"));
    assert_eq!(redis.cli(&["-n", "3", "del", "tenure:test"]), "1");
    assert!(redis.cli(&["acl", "list"]).contains("user default off"));
}

#[test]
fn all_threads_share_one_server() {
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| shared::redis().pid())).collect();
    let pids: Vec<u32> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    assert_eq!(shared::redis().cli(&["ping"]), "PONG");
}
