//! Packets that are lost on their way, by the firewall of a network namespace.

use std::path::Path;
use std::process::Command;

use super::spawn::must_be_installed;

const TABLE: &str = "inet tenure";

/// The network of a test in [`in_own_network`](super::in_own_network). A fault is in force when its method returns, for
/// connections that are there too; several for one port add up.
///
/// The firewall loses packets, and TCP sends them again, first after 200 ms and then after twice as long each time: a
/// connection comes back to life only some time after the fault has ended.
///
/// The port of a [`Proxy`](super::Proxy) cuts off the clients, and leaves the test its
/// [`Redis::cli`](super::Redis::cli).
pub struct OwnNetwork(());

impl OwnNetwork {
    pub(super) fn begin() -> Self {
        run("ip", &["link", "set", "lo", "up"]);
        let network = Self(());
        network.nft(&format!("add table {TABLE}"));
        network
    }

    /// Loses what is sent to this port.
    pub fn drop_requests(&self, port: u16) {
        self.rule(port, &format!("tcp dport {port} counter drop"));
    }

    /// Loses what is sent from this port: a request on a connection that is there takes effect, and the reply is lost.
    pub fn drop_replies(&self, port: u16) {
        self.rule(port, &format!("tcp sport {port} counter drop"));
    }

    /// Loses as many of a hundred packets, at random, both ways.
    ///
    /// # Panics
    ///
    /// If it is more than 100.
    pub fn lose(&self, port: u16, percent: u8) {
        assert!(percent <= 100, "{percent} of a hundred packets");
        for side in ["dport", "sport"] {
            self.rule(port, &format!("tcp {side} {port} numgen random mod 100 < {percent} counter drop"));
        }
    }

    /// Resets whoever sends to this port: new connections are refused, and those that are there break when used.
    pub fn reset(&self, port: u16) {
        self.rule(port, &format!("tcp dport {port} counter reject with tcp reset"));
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.nft(&format!("flush table {TABLE}"));
    }

    /// Ends the faults of this port.
    pub fn heal_port(&self, port: u16) {
        self.nft(&format!("{}; flush chain {}", declaration(port), chain(port)));
    }

    /// How many packets the faults of this port that are in force have hit so far: proof that they bite.
    pub fn hits(&self, port: u16) -> u64 {
        let rules = self.nft(&format!("{}; list chain {}", declaration(port), chain(port)));
        // Each rule says `counter packets N bytes M`.
        let words: Vec<&str> = rules.split_whitespace().collect();
        let hits = words.windows(2).filter(|pair| pair[0] == "packets");
        hits.map(|pair| pair[1].parse::<u64>().unwrap_or_else(|_| panic!("no count: {rules}"))).sum()
    }

    /// Each port has a chain, to be healed by itself.
    fn rule(&self, port: u16, rule: &str) {
        self.nft(&format!("{}; add rule {} {rule}", declaration(port), chain(port)));
    }

    #[allow(clippy::unused_self)] // whoever has one is in a network of its own
    fn nft(&self, commands: &str) -> String {
        run("nft", &[commands])
    }
}

fn chain(port: u16) -> String {
    format!("{TABLE} port{port}")
}

/// Makes the chain if it is not there.
fn declaration(port: u16) -> String {
    format!("add chain {} {{ type filter hook input priority 0; }}", chain(port))
}

fn run(program: &str, args: &[&str]) -> String {
    must_be_installed(Path::new(program));
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
