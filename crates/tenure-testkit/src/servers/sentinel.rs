//! A Redis with replicas, and Sentinels that watch it.

use std::collections::HashMap;

use super::redis::Redis;
use super::wait::wait_until;

/// What the master is called.
const SERVICE: &str = "mymaster";
/// Sentinels tell each other of themselves, and look at replicas, this often. Redis's own periods (2 s, 10 s)
/// would make every start and every failover take as long.
const PERIODS: [&str; 6] = ["sentinel", "debug", "info-period", "500", "publish-period", "200"];

/// A master with two replicas, and three Sentinels.
pub struct Sentinel {
    nodes: Vec<Redis>,
    sentinels: Vec<Redis>,
}

impl Sentinel {
    /// Starts all six, and returns when they know each other.
    ///
    /// # Panics
    ///
    /// If they do not start.
    #[must_use]
    pub fn start() -> Self {
        // A replica's first copy is not to wait for others who might want one too.
        let node = || Redis::builder().config("repl-diskless-sync-delay", "0");
        let master = node().start();
        let replica_of = format!("127.0.0.1 {}", master.port());
        let replicas = [0, 1].map(|_| node().config("replicaof", &replica_of).start());
        let monitor = format!("monitor {SERVICE} 127.0.0.1 {} 2", master.port());
        let sentinels = [0, 1, 2].map(|_| {
            Redis::builder()
                .arg("--sentinel")
                .config("sentinel", &monitor)
                // On a busy machine a server that is well may be silent for longer than a moment.
                .config("sentinel", &format!("down-after-milliseconds {SERVICE} 2000"))
                .config("sentinel", &format!("failover-timeout {SERVICE} 6000"))
                .start()
        });
        let all = Self { nodes: [master].into_iter().chain(replicas).collect(), sentinels: sentinels.into() };
        all.wait_until_whole();
        all
    }

    /// `redis+sentinel://127.0.0.1:P1,127.0.0.1:P2,127.0.0.1:P3/mymaster`.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(Redis::address).collect();
        format!("redis+sentinel://{}/{SERVICE}", addresses.join(","))
    }

    /// The three Redis, whatever their roles.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The Redis on this port.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn node(&self, port: u16) -> &Redis {
        self.nodes.iter().find(|node| node.port() == port).expect("a port of a node")
    }

    /// The three Sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Who the first Sentinel that answers says is the master now.
    ///
    /// # Panics
    ///
    /// If none answers.
    pub fn master(&self) -> &Redis {
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.answers()).expect("a Sentinel that answers");
        self.node(master_port(sentinel))
    }

    /// The nodes that are not the [`master`](Self::master).
    pub fn replicas(&self) -> Vec<&Redis> {
        let master = self.master().port();
        self.nodes.iter().filter(|node| node.port() != master).collect()
    }

    /// Makes the Sentinels choose another master; returns when all of them that answer say so, and it is one. The
    /// old one is told a moment later: see [`wait_until_whole`](Self::wait_until_whole).
    ///
    /// # Panics
    ///
    /// If the master stays.
    pub fn failover(&self) {
        let before = self.master().port();
        let answering: Vec<&Redis> = self.sentinels.iter().filter(|sentinel| sentinel.answers()).collect();
        // It refuses while another failover is under way, or as long as it knows no replica that is up to date.
        wait_until("a Sentinel agrees to a failover", || answering[0].cli(&["sentinel", "failover", SERVICE]) == "OK");
        wait_until("the master has changed", || {
            let master = master_port(answering[0]);
            master != before
                && answering.iter().all(|sentinel| master_port(sentinel) == master)
                && self.node(master).cli(&["role"]).starts_with("master")
        });
    }

    /// Returns when every Sentinel knows the others and two replicas of the same master, which follow it and have all
    /// that it had.
    ///
    /// # Panics
    ///
    /// If that does not come to be.
    pub fn wait_until_whole(&self) {
        // A Sentinel forgets them when it is restarted.
        for sentinel in &self.sentinels {
            sentinel.cli(&PERIODS);
        }
        let mut copies = Copies::default();
        wait_until("all Sentinels and replicas know each other", || {
            let master = master_port(&self.sentinels[0]);
            let agreed = self.sentinels.iter().all(|sentinel| {
                let fields = sentinel.cli(&["sentinel", "master", SERVICE]);
                let field = |key| fields.lines().skip_while(|line| *line != key).nth(1);
                master_port(sentinel) == master
                    && field("flags") == Some("master")
                    && field("num-slaves") == Some("2")
                    && field("num-other-sentinels") == Some("2")
                    && sentinel.cli(&["sentinel", "ckquorum", SERVICE]).starts_with("OK 3 usable")
            });
            let online = self.node(master).cli(&["info", "replication"]).matches("state=online").count();
            agreed && online == self.nodes.len() - 1 && copies.are_there(self.node(master))
        });
    }
}

/// How far masters were when they were first looked at. A replica that follows may take another second before it says
/// how far it is itself, and until then it counts for nobody who waits for replicas.
#[derive(Default)]
pub(super) struct Copies(HashMap<u16, u64>);

impl Copies {
    /// Whether all replicas of a master have what it had at the first look.
    pub(super) fn are_there(&mut self, master: &Redis) -> bool {
        let info = master.cli(&["info", "replication"]);
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("not a number: {info}"));
        let now = info.lines().find_map(|line| line.trim_end().strip_prefix("master_repl_offset:")).map_or(0, number);
        let had = *self.0.entry(master.port()).or_insert(now);
        let replicas = info.lines().filter_map(|line| line.split_once(",offset=")?.1.split(',').next());
        replicas.map(number).all(|offset| offset >= had)
    }
}

fn master_port(sentinel: &Redis) -> u16 {
    let address = sentinel.cli(&["sentinel", "get-master-addr-by-name", SERVICE]);
    address.lines().nth(1).and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("no master: {address}"))
}
