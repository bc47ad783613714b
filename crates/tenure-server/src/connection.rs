//! Connections: how many there are, which are idle, and how many requests of one may wait.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::limits::STREAMS_MAX;
use crate::problem::{Answer, Problem};
use crate::socket::Socket;

/// How many connections wait for room at a time; others wait in the system's backlog.
const DOOR_MAX: usize = 16;
/// How long a new connection waits for room before it is closed.
const ROOM_MAX: Duration = Duration::from_secs(5);

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    connection: Arc<Connection>,
    /// The name in the certificate that it showed.
    pub(crate) certified: Option<Arc<str>>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) address: SocketAddr,
    /// Whether it was chosen to make room.
    closing: AtomicBool,
    /// Requests under way, until the last byte of their answers was taken.
    busy: AtomicUsize,
    /// Those of them that wait for a lock.
    waiting: AtomicUsize,
    /// When it became idle, counted in uses of the room.
    idle_since: AtomicU64,
    close: Notify,
    /// Rung when a request begins.
    begun: Notify,
    /// What it goes over, to look whether the other end is there.
    socket: OnceLock<Socket>,
    /// Whether something that was written waits to be taken.
    unsent: AtomicBool,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Room {
    /// How long one is kept on which no request arrives whole, or no answer is taken.
    pub(crate) idle: Duration,
    slots: Arc<Semaphore>,
    /// Connections that were taken and have no slot yet: few, for each is an open file.
    door: Arc<Semaphore>,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// Requests under way on all of them.
    under_way: AtomicUsize,
}

/// A connection's slot; it is free again when this is dropped.
pub(crate) struct Slot {
    room: Arc<Room>,
    key: u64,
    pub(crate) connection: Arc<Connection>,
    _permit: OwnedSemaphorePermit,
}

/// A request under way on a connection.
pub(crate) struct Busy(Arc<Connection>, Arc<Room>);

/// A request that waits for a lock on a connection.
#[derive(Debug)]
pub(crate) struct WaitsOn(Arc<Connection>);

impl Room {
    pub(crate) fn new(connections: usize, idle: Duration) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)));
        let door = Arc::new(Semaphore::new(DOOR_MAX));
        Arc::new(Self {
            idle,
            slots,
            door,
            open: Mutex::default(),
            next: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
        })
    }

    /// Takes a connection when there are few that have no slot yet; what it answers besides stands for this one until
    /// it has.
    ///
    /// # Cancel safety
    ///
    /// As `taking`.
    pub(crate) async fn at_the_door<T>(
        &self,
        taking: impl Future<Output = io::Result<T>>,
    ) -> io::Result<(T, OwnedSemaphorePermit)> {
        let door = self.door.clone().acquire_owned().await.map_err(io::Error::other)?;
        Ok((taking.await?, door))
    }

    /// A slot for a connection. If all are taken, the connection that has been idle for longest is closed. None if all
    /// stay busy.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst an idle connection was closed.
    pub(crate) async fn enter(self: &Arc<Self>, address: SocketAddr) -> Option<Slot> {
        let permit = match self.slots.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.close_idle();
                tokio::time::timeout(ROOM_MAX, self.slots.clone().acquire_owned()).await.ok()?.ok()?
            }
        };
        let key = self.tick();
        let connection = Arc::new(Connection {
            address,
            closing: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            idle_since: AtomicU64::new(key),
            close: Notify::new(),
            begun: Notify::new(),
            socket: OnceLock::new(),
            unsent: AtomicBool::new(false),
        });
        self.lock().insert(key, connection.clone());
        Some(Slot { room: self.clone(), key, connection, _permit: permit })
    }

    fn close_idle(&self) {
        let open = self.lock();
        let can = |connection: &&Arc<Connection>| connection.is_idle() && !connection.closing.load(Ordering::Relaxed);
        let idle = open.values().filter(can);
        if let Some(longest) = idle.min_by_key(|connection| connection.idle_since.load(Ordering::Relaxed)) {
            longest.closing.store(true, Ordering::Relaxed);
            longest.close.notify_one();
        }
    }

    /// Whether nothing is under way on any connection.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
    }

    fn tick(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    pub(crate) fn peer(&self, certified: Option<Arc<str>>) -> Peer {
        Peer { connection: self.connection.clone(), certified }
    }

    /// A request begins.
    pub(crate) fn begin(connection: &Arc<Connection>, room: &Arc<Room>) -> Busy {
        connection.busy.fetch_add(1, Ordering::Relaxed);
        room.under_way.fetch_add(1, Ordering::Relaxed);
        connection.begun.notify_one();
        Busy(connection.clone(), room.clone())
    }

    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.room.lock().remove(&self.key);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.idle_since.store(self.1.tick(), Ordering::Relaxed);
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.1.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Whether nothing is under way on it: neither a request, nor what was answered to the last one.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0 && !self.unsent.load(Ordering::Relaxed)
    }

    /// It goes over this socket.
    pub(crate) fn goes_over(&self, socket: &Socket) {
        let _ = self.socket.set(socket.clone());
    }

    /// Whether something that was written waits to be taken.
    pub(crate) fn has_unsent(&self, unsent: bool) {
        self.unsent.store(unsent, Ordering::Relaxed);
    }

    /// Resolves when no request has come to its end on it for so long, up to twice as long.
    ///
    /// # Cancel safety
    ///
    /// Cancelling begins the time anew.
    pub(crate) async fn stays_idle(&self, time: Duration) {
        let mut before = None;
        loop {
            tokio::time::sleep(time).await;
            let since = self.is_idle().then(|| self.idle_since.load(Ordering::Relaxed));
            if since.is_some() && since == before {
                return;
            }
            before = since;
        }
    }

    /// Resolves when room is needed and this connection is idle.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the next call hears of it.
    pub(crate) async fn is_to_close(&self) {
        self.close.notified().await;
    }

    /// Resolves when a request has begun on it since this was last called.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the next call hears of it.
    pub(crate) async fn has_begun(&self) {
        self.begun.notified().await;
    }
}

impl Peer {
    pub(crate) fn address(&self) -> IpAddr {
        self.connection.address.ip()
    }

    /// Whether nobody is there to take an answer.
    pub(crate) fn is_gone(&self) -> bool {
        self.connection.socket.get().is_some_and(Socket::is_left)
    }

    /// Lets a request wait on this connection: some of its streams stay free for renewals and releases.
    pub(crate) fn begin_to_wait(&self) -> Answer<WaitsOn> {
        let most = STREAMS_MAX as usize / 4 * 3;
        let waiting = &self.connection.waiting;
        if waiting.fetch_add(1, Ordering::Relaxed) >= most {
            waiting.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{most} requests wait on this connection already");
            return Err(Problem::too_many(message).hint("open another connection"));
        }
        Ok(WaitsOn(self.connection.clone()))
    }
}

impl Drop for WaitsOn {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_is_made_by_closing_what_has_been_idle_for_longest() {
        let room = Room::new(2, Duration::from_secs(60));
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let first = room.enter(address).await.unwrap();
        let second = room.enter(address).await.unwrap();
        drop(Slot::begin(&first.connection, &room)); // the first was used last
        let busy = Slot::begin(&first.connection, &room);
        let entering = tokio::spawn({
            let room = room.clone();
            async move { room.enter(address).await.is_some() }
        });
        second.connection.is_to_close().await;
        drop(second);
        assert!(entering.await.unwrap());
        drop(busy);
    }
}
