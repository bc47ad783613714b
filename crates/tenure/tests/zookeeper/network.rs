//! Packets that are lost, in a network of the test's own.

use std::process::Command;
use std::time::Duration;

use tenure::Guard;
use tenure_testkit::servers::{Proxy, Zookeeper, in_own_network_async};

use crate::support::{connect, until};

const TTL: Duration = Duration::from_secs(10);

/// The output of `ss` for connections of this kind: one in each line, with the process that has it.
fn sockets(filter: &[&str]) -> Vec<String> {
    let output = Command::new("ss").args(["-H", "-t", "-n", "-p"]).args(filter).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The settings of the server that has a socket.
fn settings(socket: &str) -> String {
    let (_, pid) = socket.split_once("pid=").unwrap();
    let pid = &pid[..pid.find(',').unwrap()];
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    std::fs::read_to_string(arguments.trim_end_matches('\0').rsplit('\0').next().unwrap()).unwrap()
}

/// The port by which a server follows the leader.
fn port_of_following(servers: &Zookeeper, follower: usize, leader: usize) -> u16 {
    let of = |member: usize| format!("clientPort={}", servers.port(member));
    let listens = sockets(&["-l", &format!("sport = :{}", servers.port(leader))]);
    let settings_of_leader = settings(&listens[0]);
    let peers = settings_of_leader.lines().find_map(|line| line.strip_prefix(&format!("server.{}=", leader + 1)));
    let peer = peers.unwrap().split(':').nth(1).unwrap().to_owned();
    let follows = sockets(&["state", "established", &format!("dport = :{peer}")]);
    let own = follows.iter().find(|socket| settings(socket).lines().any(|line| line == of(follower))).unwrap();
    let local = own.split_whitespace().nth(2).unwrap();
    local.rsplit(':').next().unwrap().parse().unwrap()
}

#[test]
fn a_server_that_is_cut_off_from_its_leader_is_left_for_another_in_time() {
    in_own_network_async(async |network| {
        // It goes on serving clients for longer than any lease lives.
        let servers = Zookeeper::builder().config("syncLimit", "600").start();
        let mut proxies = Vec::new();
        for member in 0..3 {
            proxies.push(Proxy::to(format!("127.0.0.1:{}", servers.port(member))).await);
        }
        let hosts: Vec<String> = proxies.iter().map(Proxy::address).collect();
        let leader = servers.leader().unwrap();
        let follower = (leader + 1) % 3;
        // Some will come to it once more before they come to another.
        let mut held = Vec::new();
        for turn in 0..6 {
            let tenure = connect(&format!("zookeeper://{}/cut-off", hosts.join(","))).await;
            held.push(tenure.lock(format!("x{turn}")).ttl(TTL).acquire().await.unwrap());
        }
        // All go to one.
        for (_, proxy) in proxies.iter().enumerate().filter(|(member, _)| *member != follower) {
            proxy.refuse(true).await;
            proxy.cut();
        }
        for guard in &held {
            let deadline = guard.deadline() + TTL / 4;
            until("it is renewed there", async || guard.deadline() > deadline).await;
        }
        for proxy in &proxies {
            proxy.refuse(false).await;
        }
        let port = port_of_following(&servers, follower, leader);
        network.drop_requests(port);
        network.drop_replies(port);
        let deadline = |guard: &Guard| guard.deadline() + TTL / 2;
        let deadlines: Vec<_> = held.iter().map(deadline).collect();
        for (guard, deadline) in held.iter().zip(deadlines) {
            until("it is renewed elsewhere", async || {
                assert!(held.iter().all(Guard::is_held), "{:?}", held.iter().map(Guard::remaining).collect::<Vec<_>>());
                guard.deadline() > deadline
            })
            .await;
        }
        assert!(network.hits(port) > 0 && servers.mode(follower).as_deref() == Some("follower"));
        network.heal();
    });
}
