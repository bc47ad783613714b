//! Packets are lost as told, in a network of the test's own.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tenure_testkit::servers::{Fleet, Redis, in_own_network, in_own_network_async, wait_until};

use crate::connection::Connection;

fn connected(redis: &Redis) -> Connection {
    let mut connection = Connection::to(&redis.address()).unwrap();
    assert_eq!(connection.ask("PING").unwrap(), "+PONG");
    connection
}

/// Whether a connection can be made; a moment is enough for one that can.
fn connects(redis: &Redis) -> Result<(), ErrorKind> {
    let address = SocketAddr::from(([127, 0, 0, 1], redis.port()));
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).map(drop).map_err(|error| error.kind())
}

/// In the whole network of this process, as the kernel counts them: a line of names, and one of numbers.
fn segments_sent_again() -> u64 {
    let counts = fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = counts.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, numbers) = (lines.next().unwrap().split(' '), lines.next().unwrap().split(' '));
    names.zip(numbers).find(|(name, _)| *name == "RetransSegs").unwrap().1.parse().unwrap()
}

#[test]
fn lost_packets_slow_a_connection_and_do_not_break_it() {
    in_own_network(|network| {
        let redis = Redis::start();
        let mut connection = connected(&redis);
        network.lose(redis.port(), 30);
        let mut count = 0;
        wait_until("packets were lost and sent again", || {
            count += 1;
            assert_eq!(connection.ask("INCR x").unwrap(), format!(":{count}"), "once, though sent again");
            network.hits(redis.port()) > 0 && segments_sent_again() > 0
        });
        network.heal();
        assert_eq!(connection.ask("INCR x").unwrap(), format!(":{}", count + 1));
        assert_eq!(network.hits(redis.port()), 0);
    });
}

#[test]
fn a_request_takes_effect_though_its_reply_is_lost() {
    in_own_network(|network| {
        // What looks at it must not be cut off too: a socket is another way in.
        let redis = Redis::builder().config("unixsocket", "socket").start();
        let socket = redis.directory().join("socket");
        let value = || redis.cli(&["-s", socket.to_str().unwrap(), "get", "x"]);
        let mut connection = connected(&redis);
        network.drop_replies(redis.port());
        connection.say("INCR x").unwrap();
        wait_until("the request has arrived", || value() == "1");
        assert!(connection.hears_nothing());
        assert_eq!(connects(&redis), Err(ErrorKind::TimedOut), "the handshake needs a reply");
        network.heal_port(redis.port());
        assert_eq!(connection.hear().unwrap(), ":1", "sent again");
        assert_eq!(value(), "1", "and not applied again");
    });
}

#[test]
fn a_request_that_is_lost_takes_effect_when_it_is_sent_again() {
    in_own_network(|network| {
        let (redis, other) = (Redis::start(), Redis::start());
        let mut connection = connected(&redis);
        network.drop_requests(redis.port());
        connection.say("INCR x").unwrap();
        assert!(connection.hears_nothing());
        assert_eq!(connected(&other).ask("PING").unwrap(), "+PONG", "other ports are not touched");
        network.heal();
        assert_eq!(connection.hear().unwrap(), ":1");
    });
}

#[test]
fn whoever_is_reset_is_refused_and_breaks_off() {
    in_own_network(|network| {
        let redis = Redis::start();
        let mut connection = connected(&redis);
        network.reset(redis.port());
        assert_eq!(connects(&redis), Err(ErrorKind::ConnectionRefused));
        connection.say("INCR x").unwrap();
        assert_eq!(connection.hear().unwrap_err().kind(), ErrorKind::ConnectionReset);
        network.heal();
        assert_eq!(connected(&redis).ask("GET x").unwrap(), "$-1");
    });
}

#[test]
fn a_fleet_on_a_runtime_loses_some_of_its_nodes() {
    in_own_network_async(async |network| {
        let fleet = Fleet::proxied(3).await;
        let [cut, refusing, well] = fleet.nodes() else { panic!("three nodes") };
        network.drop_requests(cut.port());
        network.reset(refusing.port());
        assert_eq!(connects(cut), Err(ErrorKind::TimedOut));
        assert_eq!(connects(refusing), Err(ErrorKind::ConnectionRefused));
        assert_eq!(connects(well), Ok(()));
        network.heal_port(refusing.port());
        assert_eq!((connects(cut), connects(refusing)), (Err(ErrorKind::TimedOut), Ok(())));
        let healthy = fleet.proxies()[2].address();
        assert_eq!(Connection::to(&healthy).unwrap().ask("PING").unwrap(), "+PONG");
    });
}

#[test]
#[should_panic = "failed in its own network"]
fn what_fails_inside_fails_outside() {
    in_own_network(|_| std::process::exit(1));
}

#[test]
#[should_panic = "is not the name of one test"]
fn a_body_that_is_not_in_a_test_is_not_taken_for_a_success() {
    fn elsewhere() {
        in_own_network(|_| {});
    }
    elsewhere();
}
