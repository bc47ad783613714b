//! Stores besides Redis: the questions that are asked over each of them as well, with what its own locks can do and
//! what is the limit.
//!
//! A store is one line of [`OTHERS`], one of `own::listings`, and where there is a limit a contestant of its own (as
//! `updates`).

use tenure_testkit::servers::{Etcd, Postgres, Zookeeper};

use crate::contestant::Contestant;
use crate::updates;

/// With how many tasks pairs are measured.
pub const TASKS: [usize; 3] = [1, 16, 256];
/// With how many processes one name is.
pub const PROCESSES: usize = 8;

/// A server, or several, until this is dropped.
pub trait Server {
    /// The URLs that contestants are given.
    fn urls(&self) -> Vec<String>;
}

impl Server for Postgres {
    fn urls(&self) -> Vec<String> {
        vec![self.url().to_owned()]
    }
}

impl Server for Etcd {
    fn urls(&self) -> Vec<String> {
        vec![self.url()]
    }
}

impl Server for Zookeeper {
    fn urls(&self) -> Vec<String> {
        vec![self.url()]
    }
}

/// One more store.
pub struct Other {
    /// As contestants name it.
    pub name: &'static str,
    /// Starts it, as it comes.
    pub start: fn() -> Box<dyn Server>,
    /// What pairs are held against, if not only against other locks.
    pub limit: Option<fn() -> Contestant>,
}

/// All of them; of those that are clusters one member, as it shares the machine with its clients.
pub const OTHERS: [Other; 3] = [
    Other { name: "etcd", start: || Box::new(Etcd::builder().members(1).durable().start()), limit: None },
    Other {
        name: "postgres",
        start: || Box::new(Postgres::builder().durable().start()),
        limit: Some(updates::contestant),
    },
    Other { name: "zookeeper", start: || Box::new(zookeeper()), limit: None },
];

/// With room for the ttls that are asked for.
fn zookeeper() -> Zookeeper {
    let one = Zookeeper::builder().members(1).config("tickTime", "500");
    one.config("minSessionTimeout", "1000").config("maxSessionTimeout", "600000").start()
}
