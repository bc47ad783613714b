//! Servers that are started once for each test process, for tests that do not disturb them.

use std::sync::OnceLock;

use super::cluster::Cluster;
use super::etcd::Etcd;
use super::fleet::Fleet;
use super::pgbouncer::PgBouncer;
use super::postgres::Postgres;
use super::redis::Redis;
use super::sentinel::Sentinel;
use super::zookeeper::Zookeeper;

/// The user of [`tls`].
pub const USER: &str = "locker";
/// Its password, with what a URL must encode.
pub const PASSWORD: &str = "s3cret/with@chars";
/// What it may do: all that tenure needs.
pub const ACL_RULES: &str = "~tenure:* &tenure:* +@connection +evalsha +eval +time +get +mget +set +del \
    +pexpire +pexpireat +pttl +hget +hmget +hset +hdel +hgetall +zadd +zrem +zrange +zrank +zscore +zcard \
    +zrangebyscore +getex +setrange +publish +pubsub|numsub +subscribe +unsubscribe +scan +wait +info";

/// What the user of a fleet may do: all that tenure needs on each node.
pub const FLEET_ACL_RULES: &str = "~tenure:* &tenure:* +@connection +evalsha +eval +time +get +set +setrange +del \
    +unlink +exists +pexpire +pttl +hget +hmget +hset +hsetnx +hdel +hgetall +zadd +zrem +zrange +publish +subscribe \
    +unsubscribe +scan +info";

/// A plain Redis.
pub fn redis() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    SERVER.get_or_init(Redis::start)
}

/// A Redis with TLS, where only [`USER`] gets in, with [`ACL_RULES`]; its URL names database 3.
pub fn tls() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    SERVER.get_or_init(|| {
        let users = format!("user default off\nuser {USER} on >{PASSWORD} {ACL_RULES}");
        Redis::builder().tls().users(&users).login(USER, PASSWORD).database(3).start()
    })
}

/// Three members of etcd.
pub fn etcd() -> &'static Etcd {
    static SERVERS: OnceLock<Etcd> = OnceLock::new();
    SERVERS.get_or_init(Etcd::start)
}

/// A plain PostgreSQL.
pub fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// A pooler before [`postgres`].
pub fn pgbouncer() -> &'static PgBouncer {
    static SERVER: OnceLock<PgBouncer> = OnceLock::new();
    SERVER.get_or_init(|| PgBouncer::before(postgres(), 4))
}

/// Three ZooKeepers.
pub fn zookeeper() -> &'static Zookeeper {
    static SERVERS: OnceLock<Zookeeper> = OnceLock::new();
    SERVERS.get_or_init(Zookeeper::start)
}

/// One ZooKeeper with ticks of 2 s, as most are.
pub fn zookeeper_usual() -> &'static Zookeeper {
    static SERVER: OnceLock<Zookeeper> = OnceLock::new();
    SERVER.get_or_init(|| Zookeeper::builder().members(1).usual_ticks().start())
}

/// A master with two replicas, and three Sentinels.
pub fn sentinel() -> &'static Sentinel {
    static SERVERS: OnceLock<Sentinel> = OnceLock::new();
    SERVERS.get_or_init(Sentinel::start)
}

/// Three masters with a replica each.
pub fn cluster() -> &'static Cluster {
    static SERVERS: OnceLock<Cluster> = OnceLock::new();
    SERVERS.get_or_init(Cluster::start)
}

/// Five masters that know nothing of each other.
pub fn fleet() -> &'static Fleet {
    static SERVERS: OnceLock<Fleet> = OnceLock::new();
    SERVERS.get_or_init(|| Fleet::start(5))
}

/// Three masters with TLS that know nothing of each other, where only [`USER`] gets in, with [`FLEET_ACL_RULES`].
pub fn fleet_tls() -> &'static Fleet {
    static SERVERS: OnceLock<Fleet> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let users = format!("user default off\nuser {USER} on >{PASSWORD} {FLEET_ACL_RULES}");
        Fleet::builder(3).each(|node| node.tls().users(&users).login(USER, PASSWORD).database(3)).start()
    })
}
