//! Locks over HTTP, as any language would use them: a connection for each task, one request for each step. tenure's
//! service, and the lock service that etcd has, over its JSON gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tenure_load::order::Target;
use tenure_load::{BoxError, Locker};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::contestant::{Contestant, own_command};

/// What tenure's service is called among the stores.
pub const SERVICE: &str = "service";
/// What etcd's is called among the contestants.
pub const V3LOCK: &str = "v3lock";
/// Longer than any measurement: nobody renews it.
const V3LOCK_TTL_S: u64 = 600;
/// The largest answer.
const ANSWER_MAX: usize = 1024 * 1024;

/// etcd's lock service as a contestant.
pub fn v3lock() -> Contestant {
    Contestant {
        peer: V3LOCK.into(),
        store: "etcd".into(),
        library: "etcd's v3lock over its JSON gateway".into(),
        version: String::new(),
        settings: format!("a lease of {V3LOCK_TTL_S} s for each connection, not renewed"),
        renews: false,
        program: "tenure-bench".into(),
        command: own_command(),
    }
}

/// One connection, used by one task at a time.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    host: String,
    /// etcd's lease, where there is one.
    lease: String,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If nobody listens.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn open(host: &str) -> Result<Self, BoxError> {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host: host.to_owned(), lease: String::new() })
    }

    /// Sends a request, and does not wait for its answer.
    ///
    /// # Errors
    ///
    /// If the connection is closed.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves half a request: the connection is of no use any more.
    pub async fn send(&mut self, path: &str, body: &Value) -> Result<(), BoxError> {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    /// Reads an answer: its status and its body.
    ///
    /// # Errors
    ///
    /// If there is none that can be read.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves half an answer: the connection is of no use any more.
    pub async fn answer(&mut self) -> Result<(u16, Value), BoxError> {
        let mut bytes = Vec::with_capacity(1_024);
        loop {
            if self.stream.read_buf(&mut bytes).await? == 0 || bytes.len() > ANSWER_MAX {
                return Err("the connection was closed before the answer was whole".into());
            }
            let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&bytes[..end])?.to_ascii_lowercase();
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.ok_or("an answer without a length")?.trim().parse()?;
            if let Some(body) = bytes.get(end + 4..end + 4 + length) {
                return Ok((status, serde_json::from_slice(body)?));
            }
        }
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<(u16, Value), BoxError> {
        self.send(path, body).await?;
        self.answer().await
    }
}

/// The connections that no task uses now.
#[derive(Clone, Debug)]
struct Pool {
    host: Arc<str>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Pool {
    fn of(target: &Target) -> Result<Self, BoxError> {
        let url = target.urls.first().ok_or("no URL")?;
        let host = url.split_once("://").map_or(url.as_str(), |(_, host)| host);
        Ok(Self { host: host.into(), idle: Arc::default() })
    }

    fn take(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

/// tenure's service.
#[derive(Clone, Debug)]
pub struct ByService {
    pool: Pool,
    ttl_ms: u64,
    next: Arc<AtomicU64>,
}

impl ByService {
    /// Where the order says.
    ///
    /// # Errors
    ///
    /// If it does not say where.
    pub fn of(target: &Target) -> Result<Self, BoxError> {
        Ok(Self { pool: Pool::of(target)?, ttl_ms: target.ttl_ms, next: Arc::default() })
    }
}

impl Locker for ByService {
    type Held = (Connection, Value);

    async fn acquire(&self, name: &str) -> Result<Self::Held, BoxError> {
        let owner = format!("{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let mut connection = match self.pool.take() {
            Some(connection) => connection,
            None => Connection::open(&self.pool.host).await?,
        };
        let ask = json!({ "name": name, "owner": owner, "claim": "1", "ttl_ms": self.ttl_ms, "wait_ms": 50_000, "queue": true });
        loop {
            match connection.post("/v1/acquire", &ask).await? {
                (200, _) => return Ok((connection, json!({ "name": name, "owner": owner, "claim": "1" }))),
                (202, _) => {}
                (status, answer) => return Err(format!("{status}: {answer}").into()),
            }
        }
    }

    async fn release(&self, (mut connection, held): Self::Held) -> Result<(), BoxError> {
        match connection.post("/v1/release", &held).await? {
            (200, _) => {
                self.pool.give_back(connection);
                Ok(())
            }
            (status, answer) => Err(format!("{status}: {answer}").into()),
        }
    }

    fn is_held(&self, _held: &Self::Held) -> bool {
        true
    }
}

/// etcd's lock service.
#[derive(Clone, Debug)]
pub struct ByEtcd {
    pool: Pool,
}

impl ByEtcd {
    /// Where the order says.
    ///
    /// # Errors
    ///
    /// If it does not say where.
    pub fn of(target: &Target) -> Result<Self, BoxError> {
        Ok(Self { pool: Pool::of(target)? })
    }

    async fn connect(&self) -> Result<Connection, BoxError> {
        let mut connection = Connection::open(&self.pool.host).await?;
        let (status, answer) = connection.post("/v3/lease/grant", &json!({ "TTL": V3LOCK_TTL_S })).await?;
        let lease = answer["ID"].as_str().ok_or_else(|| format!("no lease: {status} {answer}"))?;
        connection.lease = lease.to_owned();
        Ok(connection)
    }
}

impl Locker for ByEtcd {
    type Held = (Connection, Value);

    async fn acquire(&self, name: &str) -> Result<Self::Held, BoxError> {
        let mut connection = match self.pool.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let ask = json!({ "name": base64(name.as_bytes()), "lease": connection.lease });
        match connection.post("/v3/lock/lock", &ask).await? {
            (200, answer) => Ok((connection, json!({ "key": answer["key"] }))),
            (status, answer) => Err(format!("{status}: {answer}").into()),
        }
    }

    async fn release(&self, (mut connection, held): Self::Held) -> Result<(), BoxError> {
        match connection.post("/v3/lock/unlock", &held).await? {
            (200, _) => {
                self.pool.give_back(connection);
                Ok(())
            }
            (status, answer) => Err(format!("{status}: {answer}").into()),
        }
    }

    fn is_held(&self, _held: &Self::Held) -> bool {
        true
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = bits >> (18 - 6 * place) & 63;
            text.push(if place <= three.len() { char::from(DIGITS[digit as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn bytes_are_written_as_base64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar/", "Zm9vYmFyLw==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
