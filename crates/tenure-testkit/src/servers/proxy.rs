//! A bad network: a TCP proxy in front of a server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::ports::Port;
use super::wait::LIMIT;

/// How much is read at once, and how many such chunks are on their way at most, in each direction of a connection.
const CHUNK_BYTES: usize = 16 * 1024;
const CHUNKS: usize = 64;

/// Passes bytes on, until told to misbehave. A fault is in force when its method returns, for bytes that were read
/// but not passed on too.
///
/// It runs on the runtime it was made on, and ends when dropped.
pub struct Proxy {
    port: Port,
    faults: watch::Sender<Faults>,
    listening: watch::Receiver<bool>,
    accepted: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

#[derive(Clone, Copy, Default)]
struct Faults {
    frozen: bool,
    drop_replies: bool,
    refused: bool,
    request_delay: Duration,
    reply_delay: Duration,
    /// How often all connections were cut; one that was made before the last time is dead.
    cuts: usize,
}

impl Faults {
    fn delay(&self, what: Bytes) -> Duration {
        match what {
            Bytes::Requests => self.request_delay,
            Bytes::Replies => self.reply_delay,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Bytes {
    Requests,
    Replies,
}

struct Chunk {
    read_at: Instant,
    bytes: Vec<u8>,
}

impl Proxy {
    /// A proxy in front of this address, on a port of its own.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left of it.
    pub async fn to(address: impl Into<String>) -> Self {
        let port = Port::free();
        let listener = listen(port.number).await;
        let (faults, seen) = watch::channel(Faults::default());
        let (listens, listening) = watch::channel(true);
        let accepted = Arc::new(AtomicUsize::new(0));
        let gate = Gate { address: address.into().into(), port: port.number, accepted: accepted.clone(), faults: seen };
        let serving = tokio::spawn(gate.serve(listener, listens));
        Self { port, faults, listening, accepted, serving }
    }

    /// Its port; the same for life.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Hangs: stops all bytes, both ways; connections stay, and new ones are accepted, also if the server is down.
    pub fn freeze(&self) {
        self.faults.send_modify(|faults| faults.frozen = true);
    }

    /// Lets bytes pass again, those that were held up first.
    pub fn thaw(&self) {
        self.faults.send_modify(|faults| faults.frozen = false);
    }

    /// Whether replies vanish, while requests pass.
    pub fn drop_replies(&self, yes: bool) {
        self.faults.send_modify(|faults| faults.drop_replies = yes);
    }

    /// How long bytes are on their way, each way; those that are on it too.
    pub fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| (faults.request_delay, faults.reply_delay) = (delay, delay));
    }

    /// [`delay`](Self::delay) for requests alone: they take effect late.
    pub fn delay_requests(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.request_delay = delay);
    }

    /// [`delay`](Self::delay) for replies alone: requests take effect at once.
    pub fn delay_replies(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.reply_delay = delay);
    }

    /// Closes all connections; what was on its way is lost.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Whether new connections are refused; those that are there stay.
    ///
    /// # Cancel safety
    ///
    /// It comes to be so all the same, later.
    pub async fn refuse(&self, yes: bool) {
        self.faults.send_modify(|faults| faults.refused = yes);
        let mut listening = self.listening.clone();
        let done = timeout(LIMIT, listening.wait_for(|listening| *listening != yes)).await;
        done.expect("the proxy does not obey").expect("the proxy runs");
    }

    /// Ends all faults; what was held up passes, and what was lost stays lost.
    ///
    /// # Cancel safety
    ///
    /// It comes to be so all the same, later.
    pub async fn heal(&self) {
        self.faults.send_modify(|faults| *faults = Faults { cuts: faults.cuts, ..Faults::default() });
        self.refuse(false).await;
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// What accepts.
struct Gate {
    address: Arc<str>,
    port: u16,
    accepted: Arc<AtomicUsize>,
    faults: watch::Receiver<Faults>,
}

impl Gate {
    async fn serve(mut self, first: TcpListener, listens: watch::Sender<bool>) {
        let mut listener = Some(first);
        // Dropped, and all connections with it, when the proxy is.
        let mut connections = JoinSet::new();
        loop {
            if self.faults.borrow_and_update().refused {
                listener.take().into_iter().for_each(close);
            } else if listener.is_none() {
                listener = Some(listen(self.port).await);
            }
            listens.send_replace(listener.is_some());
            let client = tokio::select! {
                biased;
                changed = self.faults.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                client = accept(listener.as_ref()) => client,
            };
            self.accepted.fetch_add(1, Ordering::SeqCst);
            while connections.try_join_next().is_some() {}
            let (address, faults) = (self.address.clone(), self.faults.clone());
            let cuts = faults.borrow().cuts;
            connections.spawn(async move {
                // Broken off from either side, or no server: the client sees its connection closed.
                let _ = connection(client, &address, faults, cuts).await;
            });
        }
    }
}

async fn listen(port: u16) -> TcpListener {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.expect("the port of the proxy is its own")
}

/// Closed, not just unattended: the kernel would go on accepting. And shut down before: a process that is being
/// started has the socket too, until it runs its program.
fn close(listener: TcpListener) {
    shutdown(&listener, Shutdown::Both).expect("a listener can be shut down");
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    listener.accept().await.expect("cannot accept").0
}

async fn connection(
    client: TcpStream,
    address: &str,
    mut faults: watch::Receiver<Faults>,
    cuts: usize,
) -> io::Result<()> {
    let server = match TcpStream::connect(address).await {
        Ok(server) => server,
        Err(error) => {
            // That nobody is there is news, and does not get through ice.
            let _ = faults.wait_for(|faults| !faults.frozen || faults.cuts != cuts).await;
            return Err(error);
        }
    };
    // Delays are the test's to make.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let network = |what| Network { what, faults: faults.clone(), cuts };
    let requests = pass(from_client, to_server, network(Bytes::Requests));
    let replies = pass(from_server, to_client, network(Bytes::Replies));
    tokio::select! {
        // The end of a proxy is a cut, too.
        _ = faults.wait_for(|faults| faults.cuts != cuts) => Ok(()),
        passed = async { tokio::try_join!(requests, replies) } => passed.map(drop),
    }
}

/// Passes the bytes of one direction on, to their end; then says that they have ended.
async fn pass(from: OwnedReadHalf, to: OwnedWriteHalf, network: Network) -> io::Result<()> {
    let (chunks, queue) = mpsc::channel(CHUNKS);
    tokio::try_join!(read(from, chunks), network.write(queue, to)).map(drop)
}

async fn read(from: OwnedReadHalf, chunks: mpsc::Sender<Chunk>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        from.readable().await?;
        match from.try_read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                let chunk = Chunk { read_at: Instant::now(), bytes: buffer[..count].to_vec() };
                if chunks.send(chunk).await.is_err() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// What one direction of a connection is up against.
struct Network {
    what: Bytes,
    faults: watch::Receiver<Faults>,
    /// How many cuts there had been when the connection was made.
    cuts: usize,
}

impl Network {
    async fn write(mut self, mut queue: mpsc::Receiver<Chunk>, to: OwnedWriteHalf) -> io::Result<()> {
        while let Some(chunk) = queue.recv().await {
            let mut left = &chunk.bytes[..];
            while !left.is_empty() {
                self.arrival(chunk.read_at).await;
                to.writable().await?;
                // Borrowed while it writes: whoever sets a fault waits for that, and can rely on it then.
                let now = self.faults.borrow();
                if now.cuts != self.cuts {
                    return Ok(());
                }
                if now.frozen || chunk.read_at + now.delay(self.what) > Instant::now() {
                    continue;
                }
                if now.drop_replies && self.what == Bytes::Replies {
                    break;
                }
                match to.try_write(left) {
                    Ok(count) => left = &left[count..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
        // That a connection was closed is news, too, and does not get through ice.
        self.arrival(Instant::now()).await;
        Ok(())
    }

    /// Waits until what was read at this time arrives on the other side, should the faults stay as they are.
    async fn arrival(&mut self, read_at: Instant) {
        loop {
            let now = *self.faults.borrow_and_update();
            let due = read_at + now.delay(self.what);
            if !now.frozen && due <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(due), if !now.frozen => {}
                changed = self.faults.changed() => if changed.is_err() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_listener_refuses_although_another_process_has_it() {
        let port = Port::free();
        let listener = listen(port.number).await.into_std().unwrap();
        let _elsewhere = listener.try_clone().unwrap();
        close(TcpListener::from_std(listener).unwrap());
        let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port.number)).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
