//! Nothing is left behind.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use tenure_testkit::servers::{Redis, Sentinel, in_own_network, shared, wait_until};

use crate::connection::Connection;

/// Set for the process that is to be killed.
const VICTIM: &str = "TENURE_TESTKIT_VICTIM";

/// Killed and reaped even if the test fails.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gone, or dead and not reaped by whoever inherited it.
fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
}

#[test]
fn a_dropped_server_leaves_neither_process_nor_directory() {
    let redis = Redis::start();
    let (pid, directory) = (redis.pid(), redis.directory().to_owned());
    assert!(!is_gone(pid) && directory.join("log").is_file());
    redis.pause();
    drop(redis);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "not reaped");
    assert!(!directory.exists());
}

#[test]
fn dropped_sentinels_leave_no_process() {
    let sentinel = Sentinel::start();
    let pids: Vec<u32> = sentinel.nodes().iter().chain(sentinel.sentinels()).map(Redis::pid).collect();
    assert_eq!(pids.len(), 6);
    drop(sentinel);
    assert!(pids.into_iter().all(is_gone));
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let redis = thread::spawn(Redis::start).join().unwrap();
    let mut connection = Connection::to(&redis.address()).unwrap();
    // The thread may end a moment after it was joined.
    for _ in 0..3 {
        assert!(connection.hears_nothing(), "the server has ended");
        assert_eq!(connection.ask("PING").unwrap(), "+PONG");
    }
}

#[test]
fn servers_and_directories_go_with_a_test_process_that_is_killed() {
    if std::env::var_os(VICTIM).is_some() {
        return be_killed();
    }
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "--nocapture", "lifetime::servers_and_directories_go_with_a_test_process_that_is_killed"]);
    let mut victim = Victim(victim.env(VICTIM, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(victim.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let servers: Vec<(u32, String)> = lines
        // The first is on the line that libtest began.
        .filter_map(|line| Some(line.split_once("started ")?.1.to_owned()))
        .filter_map(|line| line.split_once(' ').map(|(pid, directory)| (pid.parse().unwrap(), directory.to_owned())))
        .take(3)
        .collect();
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|(pid, directory)| !is_gone(*pid) && Path::new(directory).is_dir()));

    victim.0.kill().unwrap();
    victim.0.wait().unwrap();
    wait_until("the servers are gone", || servers.iter().all(|(pid, _)| is_gone(*pid)));
    wait_until("their directories are gone", || {
        servers.iter().all(|(_, directory)| !Path::new(directory).parent().unwrap().exists())
    });
}

#[test]
fn a_network_goes_with_a_test_process_that_is_killed() {
    if let Some(file) = std::env::var_os(VICTIM) {
        return in_own_network(|_| {
            let redis = Redis::start();
            // Renamed, so that whoever reads it reads all of it.
            let draft = redis.directory().join("pids");
            fs::write(&draft, format!("{} {}", std::process::id(), redis.pid())).unwrap();
            fs::rename(draft, file).unwrap();
            wait_until("it is killed", || false);
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "--nocapture", "lifetime::a_network_goes_with_a_test_process_that_is_killed"]);
    let mut victim = Victim(victim.env(VICTIM, &file).stdout(Stdio::null()).spawn().unwrap());
    wait_until("there is a server inside", || file.exists());
    let pids = fs::read_to_string(&file).unwrap();
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(!pids.iter().any(|pid| is_gone(*pid)));

    victim.0.kill().unwrap();
    victim.0.wait().unwrap();
    wait_until("the test inside and its server are gone", || pids.iter().all(|pid| is_gone(*pid)));
}

/// Starts servers: its own, a paused one, and one that no owner would ever drop; and does not end by itself.
fn be_killed() {
    let (own, paused) = (Redis::start(), Redis::start());
    paused.pause();
    for redis in [&own, &paused, shared::redis()] {
        println!("started {} {}", redis.pid(), redis.directory().display());
    }
    std::io::stdout().flush().unwrap();
    // Unless whoever should kill it is gone.
    let _ = std::io::stdin().read(&mut [0]);
}
