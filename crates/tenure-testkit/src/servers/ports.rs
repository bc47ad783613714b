//! Ports nobody else uses, also while their server is down.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;

/// Below what Linux gives to outgoing connections (32768 and up), and so are the cluster's bus ports: else a
/// connection could take the port of a server that is being restarted, or a client that tries to reconnect to it
/// be connected to itself.
const PORTS: Range<u16> = 10_240..22_700;
/// How far the port of a cluster's bus is from the port of its node.
const BUS: u16 = 10_000;
const TRIES: usize = 1000;

/// A port and its bus port, ours until this is dropped.
pub(super) struct Port {
    pub(super) number: u16,
    /// Taken over UDP, where no server of ours listens. The kernel gives them back when the process ends, and
    /// they keep other test processes from the TCP ports of the same numbers.
    _reserved: [UdpSocket; 2],
}

impl Port {
    pub(super) fn free() -> Self {
        (0..TRIES).find_map(|_| Self::take(rand::random_range(PORTS))).expect("a free port")
    }

    fn take(number: u16) -> Option<Self> {
        let reserve = |port| {
            let reserved = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(reserved)
        };
        Some(Self { number, _reserved: [reserve(number)?, reserve(number + BUS)?] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_nobody_elses_until_it_is_dropped() {
        let port = Port::free();
        let number = port.number;
        assert!(Port::take(number).is_none());
        drop(port);
        assert!(Port::take(number).is_some());
    }

    #[test]
    fn a_port_is_not_free_if_its_bus_port_is_not() {
        let number = Port::free().number;
        let _busy = TcpListener::bind((Ipv4Addr::LOCALHOST, number + BUS)).unwrap();
        assert!(Port::take(number).is_none());
    }
}
