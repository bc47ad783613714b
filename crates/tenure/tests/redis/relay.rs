//! A network with faults that a proxy for bytes cannot have: it sees requests, replies and messages as they pass.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes on what comes, on threads of its own. Ends when dropped.
pub(crate) struct Relay {
    address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    open: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
    /// Connections with a lower number are black holes: they stay, and nothing comes out.
    holes_below: AtomicUsize,
    /// How many pieces still pass before all connections are cut, once; none if zero.
    pieces_left: AtomicUsize,
    cuts: AtomicUsize,
    swallow_grants: AtomicBool,
    swallowed: AtomicUsize,
    ended: AtomicBool,
}

impl Relay {
    pub(crate) fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared::default());
        let (serving, server) = (shared.clone(), server.to_owned());
        thread::spawn(move || {
            for client in listener.incoming() {
                if serving.ended.load(SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else { continue };
                serving.connect(&client, &server);
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on nothing passes over the connections there are, and they do not end; new ones are well.
    pub(crate) fn swallow_connections(&self) {
        self.shared.holes_below.store(self.shared.accepted.load(SeqCst), SeqCst);
    }

    /// Cuts all connections when so many pieces have passed, in either direction, counted from now.
    pub(crate) fn cut_after(&self, pieces: usize) {
        self.shared.pieces_left.store(pieces, SeqCst);
    }

    pub(crate) fn cuts(&self) -> usize {
        self.shared.cuts.load(SeqCst)
    }

    /// Whether messages that tell of a grant vanish.
    pub(crate) fn swallow_grants(&self, yes: bool) {
        self.shared.swallow_grants.store(yes, SeqCst);
    }

    pub(crate) fn swallowed(&self) -> usize {
        self.shared.swallowed.load(SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.shared.cut();
        // Wakes the thread that accepts.
        drop(TcpStream::connect(&self.address));
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let number = self.accepted.fetch_add(1, SeqCst);
        for stream in [client, server] {
            stream.set_nodelay(true).unwrap();
            self.open.lock().unwrap().push(stream.try_clone().unwrap());
        }
        for (from, to, to_client) in [(client, server, false), (server, client, true)] {
            let (from, to, shared) = (from.try_clone().unwrap(), to.try_clone().unwrap(), self.clone());
            thread::spawn(move || shared.pass(number, from, to, to_client));
        }
    }

    fn pass(&self, number: usize, mut from: TcpStream, mut to: TcpStream, to_client: bool) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let piece = &buffer[..count];
            if number < self.holes_below.load(SeqCst) {
                continue;
            }
            let last = self.pieces_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1);
            if last {
                self.cuts.fetch_add(1, SeqCst);
                self.cut();
                return;
            }
            if to_client && self.swallow_grants.load(SeqCst) && tells_of_a_grant(piece) {
                self.swallowed.fetch_add(1, SeqCst);
                continue;
            }
            if to.write_all(piece).is_err() {
                break;
            }
        }
        if number >= self.holes_below.load(SeqCst) {
            let _ = to.shutdown(Shutdown::Both);
        }
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A message of an inbox is a piece of its own, as nothing else passes there.
fn tells_of_a_grant(piece: &[u8]) -> bool {
    let text = String::from_utf8_lossy(piece);
    text.contains("tenure:inbox:") && text.contains("\r\ng ")
}
