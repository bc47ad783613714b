//! A Redis Cluster.

use super::redis::Redis;
use super::sentinel::Copies;
use super::wait::wait_until;

const NODES: usize = 6;
const MASTERS: usize = 3;
/// How many keys move at a time.
const KEYS: &str = "100";
/// After how many milliseconds of silence a node is taken for dead. The machine may stand still for a second.
const CALM_MS: &str = "5000";
const HASTY_MS: &str = "1000";

/// Three masters with a replica each.
pub struct Cluster {
    nodes: Vec<Redis>,
}

/// What a node says of itself in `CLUSTER NODES`.
struct Myself {
    id: String,
    is_master: bool,
    /// Whom it follows, if it is a replica.
    follows: String,
    epoch: u64,
    /// The slots that are its own, both ends included.
    slots: Vec<(u16, u16)>,
}

impl Cluster {
    /// Starts all six, and returns when they know each other.
    ///
    /// # Panics
    ///
    /// If they do not start.
    #[must_use]
    pub fn start() -> Self {
        // Hasty nodes know each other sooner.
        let cluster = Self::hasty();
        for node in &cluster.nodes {
            assert_eq!(node.cli(&["config", "set", "cluster-node-timeout", CALM_MS]), "OK");
        }
        cluster.wait_until_whole();
        cluster
    }

    /// [`start`](Self::start), but nodes take each other for dead after one second of silence instead of five: for
    /// tests that wait for a replica to take its master's place, or for a cluster to be down.
    ///
    /// # Panics
    ///
    /// If they do not start.
    #[must_use]
    pub fn hasty() -> Self {
        let node = || {
            Redis::builder()
                .config("cluster-enabled", "yes")
                .config("cluster-node-timeout", HASTY_MS)
                // A replica's first copy is not to wait for others who might want one too.
                .config("repl-diskless-sync-delay", "0")
                .start()
        };
        let nodes: Vec<Redis> = (0..NODES).map(|_| node()).collect();
        let addresses: Vec<String> = nodes.iter().map(Redis::address).collect();
        let create: Vec<&str> = ["--cluster", "create"]
            .into_iter()
            .chain(addresses.iter().map(String::as_str))
            .chain(["--cluster-replicas", "1", "--cluster-yes"])
            .collect();
        nodes[0].cli(&create);
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    /// `redis+cluster://127.0.0.1:P1,127.0.0.1:P2,127.0.0.1:P3`: three of the nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.nodes.iter().take(MASTERS).map(Redis::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// All nodes, whatever their roles.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        let slot = self.answering().next().expect("a node that answers").cli(&["cluster", "keyslot", key]);
        slot.parse().unwrap_or_else(|_| panic!("no slot: {slot}"))
    }

    /// The master that has the slot of this key now.
    ///
    /// # Panics
    ///
    /// If none that answers has it.
    pub fn master_of(&self, key: &str) -> &Redis {
        let slot = self.slot_of(key);
        self.owner(slot).unwrap_or_else(|| panic!("nobody has slot {slot}"))
    }

    /// A replica that follows this master now.
    ///
    /// # Panics
    ///
    /// If none that answers does, or the master does not answer.
    pub fn replica_of(&self, master: &Redis) -> &Redis {
        let id = myself(master).id;
        self.answering().find(|node| myself(node).follows == id).expect("a replica that answers")
    }

    /// Moves a slot with all its keys from one master to another, as an operator would.
    pub fn migrate_slot(&self, slot: u16, from: &Redis, to: &Redis) {
        self.begin_migration(slot, from, to);
        self.move_keys(slot, from, to);
        self.end_migration(slot, from, to);
    }

    /// The first step: `from` sends whoever asks for a key that it has not to `to` (`ASK`).
    #[allow(clippy::unused_self)] // the three steps read alike
    pub fn begin_migration(&self, slot: u16, from: &Redis, to: &Redis) {
        set_slot(to, slot, &["importing", &myself(from).id]);
        set_slot(from, slot, &["migrating", &myself(to).id]);
    }

    /// The second step: the keys move; how many did.
    ///
    /// # Panics
    ///
    /// If a key cannot be moved.
    #[allow(clippy::unused_self)] // the three steps read alike
    pub fn move_keys(&self, slot: u16, from: &Redis, to: &Redis) -> usize {
        let (slot, port) = (slot.to_string(), to.port().to_string());
        let mut moved = 0;
        loop {
            let keys = from.cli(&["cluster", "getkeysinslot", &slot, KEYS]);
            if keys.is_empty() {
                return moved;
            }
            let keys: Vec<&str> = keys.lines().collect();
            let migrate = [&["migrate", "127.0.0.1", &port, "", "0", "5000", "keys"], &keys[..]].concat();
            let answer = from.cli(&migrate);
            // Keys may expire on their way.
            assert!(answer == "OK" || answer == "NOKEY", "cannot move {keys:?}: {answer}");
            moved += keys.len();
        }
    }

    /// The last step: the slot is `to`'s; returns when every node that answers says so.
    ///
    /// # Panics
    ///
    /// If they do not agree.
    pub fn end_migration(&self, slot: u16, from: &Redis, to: &Redis) {
        let id = myself(to).id;
        // First where it goes: else there is a moment without an owner.
        set_slot(to, slot, &["node", &id]);
        set_slot(from, slot, &["node", &id]);
        wait_until("all nodes know the slot's new owner", || {
            self.answering().all(|node| {
                let nodes = node.cli(&["cluster", "nodes"]);
                nodes.lines().filter_map(parsed).any(|known| known.id == id && known.has(slot))
            })
        });
    }

    /// Returns when every node sees all the others and all slots, and every master's replica follows it and has all
    /// that the master had.
    ///
    /// # Panics
    ///
    /// If that does not come to be.
    pub fn wait_until_whole(&self) {
        let mut copies = Copies::default();
        wait_until("all nodes of the cluster know each other", || {
            let agreed = self.nodes.iter().all(|node| {
                let info = node.cli(&["cluster", "info"]);
                let says = |line| info.lines().any(|said| said.trim_end() == line);
                let nodes = node.cli(&["cluster", "nodes"]);
                let followers = nodes.lines().filter_map(parsed).filter(|known| !known.is_master).count();
                says("cluster_state:ok")
                    && says("cluster_known_nodes:6")
                    && says("cluster_slots_ok:16384")
                    && followers == NODES - MASTERS
                    && !nodes.contains("fail")
            });
            let online = |node: &Redis| node.cli(&["info", "replication"]).matches("state=online").count();
            agreed
                && self.nodes.iter().map(online).sum::<usize>() == NODES - MASTERS
                && self.nodes.iter().all(|node| copies.are_there(node))
        });
    }

    /// The node that has a slot. After a failover two may claim it until the old one has heard: the later claim counts.
    fn owner(&self, slot: u16) -> Option<&Redis> {
        self.answering()
            .map(|node| (node, myself(node)))
            .filter(|(_, known)| known.is_master && known.has(slot))
            .max_by_key(|(_, known)| known.epoch)
            .map(|(node, _)| node)
    }

    fn answering(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.answers())
    }
}

impl Myself {
    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

fn set_slot(node: &Redis, slot: u16, how: &[&str]) {
    let slot = slot.to_string();
    let command = [&["cluster", "setslot", &slot], how].concat();
    let answer = node.cli(&command);
    assert_eq!(answer, "OK", "{command:?} at {}", node.address());
}

fn myself(node: &Redis) -> Myself {
    let nodes = node.cli(&["cluster", "nodes"]);
    let mine = nodes.lines().find(|line| line.contains("myself")).and_then(parsed);
    mine.unwrap_or_else(|| panic!("a node does not know itself: {nodes}"))
}

/// A line of `CLUSTER NODES`: id, address, flags, master, ping, pong, epoch, link, slots.
fn parsed(line: &str) -> Option<Myself> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let slots = fields.get(8..)?.iter().filter_map(|slots| {
        // A slot on its way is listed once more, in brackets.
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    Some(Myself {
        id: fields[0].to_owned(),
        is_master: fields[2].contains("master"),
        follows: fields[3].to_owned(),
        epoch: fields[6].parse().ok()?,
        slots: slots.collect(),
    })
}
