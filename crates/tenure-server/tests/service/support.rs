//! What the tests share: instances over real stores, and a client that can stop half way through a request or an
//! answer.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::{NameView, Tenure};
use tenure_server::{Entry, Options, Right, Running, Secret, start};
use tenure_testkit::servers::shared;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

/// Nothing here takes this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One test for each store: `over!(case: redis, etcd)` runs `case(url)`.
macro_rules! over {
    ($case:ident: $($store:ident),+) => {
        mod $case {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $store() {
                super::$case(crate::support::$store().await).await;
            })+
        }
    };
}
pub(crate) use over;

/// A store of this test alone, in memory.
pub(crate) async fn memory() -> String {
    format!("memory:{}", name("store"))
}

pub(crate) async fn redis() -> String {
    started(|| shared::redis().url().to_owned()).await
}

pub(crate) async fn postgres() -> String {
    started(|| shared::postgres().url().to_owned()).await
}

pub(crate) async fn redlock() -> String {
    started(|| shared::fleet().url_with("node_timeout=500ms")).await
}

pub(crate) async fn etcd() -> String {
    started(|| shared::etcd().url()).await
}

pub(crate) async fn zookeeper() -> String {
    started(|| shared::zookeeper().url()).await
}

/// Servers start in a thread that may block.
async fn started(start: impl FnOnce() -> String + Send + 'static) -> String {
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// A name that no other test uses.
pub(crate) fn name(stem: &str) -> String {
    format!("{stem}-{:016x}", rand::random::<u64>())
}

/// An instance with these options on a port of its own.
pub(crate) async fn instance_with(store: &str, change: impl FnOnce(&mut Options)) -> Instance {
    let mut options = Options::new(store, ([127, 0, 0, 1], 0).into());
    change(&mut options);
    let running = start(options).await.unwrap();
    Instance { client: Client { address: running.address(), bearer: None }, running }
}

pub(crate) async fn instance(store: &str) -> Instance {
    instance_with(store, |_| {}).await
}

/// An instance that serves until it is dropped.
pub(crate) struct Instance {
    pub(crate) running: Running,
    pub(crate) client: Client,
}

impl std::ops::Deref for Instance {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Somebody who calls an instance, with a connection for each request.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) bearer: Option<String>,
}

impl Client {
    /// The same with a token.
    pub(crate) fn with(&self, bearer: &str) -> Self {
        Self { bearer: Some(bearer.to_owned()), ..self.clone() }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.call("POST", path, Some(&body.to_string())).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, None).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.call("DELETE", path, None).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<&str>) -> Reply {
        self.sent(method, path, body).await.reply().await
    }

    /// A connection that has sent a request.
    pub(crate) async fn sent(&self, method: &str, path: &str, body: Option<&str>) -> Connection {
        let mut connection = self.open().await;
        connection.send(self.request(method, path, body).as_bytes()).await;
        connection
    }

    /// An acquire that is under way.
    pub(crate) async fn acquiring(&self, body: Value) -> Connection {
        self.sent("POST", "/v1/acquire", Some(&body.to_string())).await
    }

    pub(crate) async fn open(&self) -> Connection {
        let stream = timeout(PATIENCE, TcpStream::connect(self.address)).await.expect("a connection").unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream, unread: Vec::new() }
    }

    /// A connection for which the kernel keeps little that was not read.
    pub(crate) async fn open_small(&self) -> Connection {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let stream = timeout(PATIENCE, socket.connect(self.address)).await.expect("a connection").unwrap();
        Connection { stream, unread: Vec::new() }
    }

    /// A request as it is sent.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&str>) -> String {
        let bearer = self.bearer.iter().map(|bearer| format!("authorization: Bearer {bearer}\r\n"));
        let body_head =
            body.iter().map(|body| format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        let headers: String = bearer.chain(body_head).collect();
        format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n{}", body.unwrap_or_default())
    }

    /// A request whose end has not been sent: an instance waits for it, and so does not end when it is told to stop.
    pub(crate) async fn half_sent(&self) -> Connection {
        let request = self.request("POST", "/v1/acquire", Some(&wish("half", "o", 1_000).to_string()));
        let mut connection = self.open().await;
        connection.send(&request.as_bytes()[..request.len() - 1]).await;
        connection
    }

    pub(crate) async fn acquire(&self, body: Value) -> Reply {
        self.post("/v1/acquire", body).await
    }

    pub(crate) async fn renew(&self, body: Value) -> Reply {
        self.post("/v1/renew", body).await
    }

    pub(crate) async fn release(&self, body: Value) -> Reply {
        self.post("/v1/release", body).await
    }

    /// A name as the instance shows it.
    pub(crate) async fn show(&self, name: &str) -> Value {
        let encoded = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        self.get(&format!("/v1/lock?name={encoded}")).await.is(200).json()
    }
}

/// One connection, in the hands of the test.
pub(crate) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads what comes next; nothing if it was closed, or reset.
    async fn read(&mut self) -> usize {
        let mut buffer = vec![0; 16 * 1024];
        let read = timeout(PATIENCE, self.stream.read(&mut buffer)).await.expect("something to read");
        let read = read.unwrap_or(0);
        self.unread.extend_from_slice(&buffer[..read]);
        read
    }

    /// Reads a few bytes of an answer, and leaves the rest.
    pub(crate) async fn begins_to_answer(&mut self) {
        let mut few = [0; 12];
        timeout(PATIENCE, self.stream.read_exact(&mut few)).await.expect("something to read").expect("an answer");
        assert!(few.starts_with(b"HTTP/1.1 "), "{few:?}");
    }

    /// What was read and not asked for yet.
    pub(crate) fn unread(&self) -> Vec<u8> {
        self.unread.clone()
    }

    /// Waits until the other side has closed it.
    pub(crate) async fn is_closed(&mut self) {
        while self.read().await > 0 {}
    }

    /// Whether nothing has come for so long.
    pub(crate) async fn is_silent_for(&mut self, time: Duration) -> bool {
        self.unread.is_empty() && timeout(time, self.stream.readable()).await.is_err()
    }

    /// One answer; none if the connection was closed before it.
    pub(crate) async fn try_reply(&mut self) -> Option<Reply> {
        let head_end = loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                break end;
            }
            if self.read().await == 0 {
                return None;
            }
        };
        let head = String::from_utf8(self.unread.drain(..head_end + 4).collect()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers: HashMap<_, _> =
            headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        while self.unread.len() < length {
            if self.read().await == 0 {
                return None;
            }
        }
        let body = self.unread.drain(..length).collect();
        Some(Reply { status, headers, body })
    }

    pub(crate) async fn reply(mut self) -> Reply {
        self.next_reply().await
    }

    pub(crate) async fn next_reply(&mut self) -> Reply {
        self.try_reply().await.expect("an answer")
    }

    /// Reads until this text has come, for streams. Answers all that was read, up to its end.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        let started = Instant::now();
        let end = loop {
            // A stream says now and then that it lives.
            assert!(started.elapsed() < PATIENCE, "no {text:?}");
            if let Some(at) = find(&self.unread, text.as_bytes()) {
                break at + text.len();
            }
            let so_far = String::from_utf8_lossy(&self.unread).into_owned();
            assert!(self.read().await > 0, "closed before {text:?}: {so_far}");
        };
        String::from_utf8(self.unread.drain(..end).collect()).unwrap()
    }

    /// Whether this text is among all that has come so far.
    pub(crate) async fn has(&mut self, text: &str) -> bool {
        while timeout(Duration::from_millis(100), self.stream.readable()).await.is_ok() && self.read().await > 0 {}
        find(&self.unread, text.as_bytes()).is_some()
    }

    /// Closed with a reset, as by a machine that has forgotten it.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// An answer.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.headers, String::from_utf8_lossy(&self.body))
    }
}

impl Reply {
    /// Checks the status, showing everything if it is another.
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Checks the kind of a problem, and that it has the shape of all problems.
    pub(crate) fn tells_problem(self, status: u16, kind: &str) -> Self {
        let reply = self.is(status);
        let problem = reply.json();
        assert_eq!(problem["kind"], kind, "{reply:?}");
        assert!(problem["message"].as_str().is_some_and(|message| !message.is_empty()), "{reply:?}");
        assert_eq!(problem["request_id"].as_str(), reply.headers.get("x-request-id").map(String::as_str), "{reply:?}");
        assert!(reply.headers.contains_key("x-request-id"), "{reply:?}");
        reply
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn token(&self) -> u64 {
        self.json()["token"].as_u64().unwrap_or_else(|| panic!("no token: {self:?}"))
    }

    pub(crate) fn number(&self) -> u64 {
        self.json()["number"].as_u64().unwrap_or_else(|| panic!("no number: {self:?}"))
    }
}

/// What the store has, without any service.
pub(crate) struct Look(Tenure);

impl Look {
    pub(crate) async fn at(store: &str) -> Self {
        Self(Tenure::connect(store).await.unwrap())
    }

    pub(crate) async fn view(&self, name: &str) -> NameView {
        self.0.inspect(name).await.unwrap()
    }

    /// How many hold it, and how many wait.
    pub(crate) async fn counts(&self, name: &str) -> (usize, usize) {
        let view = self.view(name).await;
        (view.holders.len(), view.waiters.len())
    }

    /// Waits until so many hold it and so many wait.
    pub(crate) async fn until(&self, name: &str, counts: (usize, usize)) {
        let started = Instant::now();
        loop {
            let now = self.counts(name).await;
            if now == counts {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{name}: {now:?} hold and wait, not {counts:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The tokens of those who hold it.
    pub(crate) async fn tokens(&self, name: &str) -> Vec<u64> {
        self.view(name).await.holders.iter().filter_map(|holder| holder.token.map(|token| token.0)).collect()
    }
}

/// A file of tokens.
pub(crate) struct TokenFile {
    _folder: TempDir,
    pub(crate) path: PathBuf,
    secrets: HashMap<String, String>,
}

impl TokenFile {
    /// With these names, rights and prefixes.
    pub(crate) fn of(entries: &[(&str, &[Right], &[&str])]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        let mut file = Self { _folder: folder, path, secrets: HashMap::new() };
        file.write(entries);
        file
    }

    /// Writes it anew, with new secrets for new names.
    pub(crate) fn write(&mut self, entries: &[(&str, &[Right], &[&str])]) {
        let mut text = String::new();
        for (name, may, prefixes) in entries {
            let secret = Secret::random();
            let prefix = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
            let entry =
                Entry { name: (*name).to_owned(), sha256: secret.hash().to_string(), may: may.to_vec(), prefix };
            text.push_str(&entry.to_toml());
            self.secrets.insert((*name).to_owned(), secret.reveal().to_owned());
        }
        std::fs::write(&self.path, text).unwrap();
    }

    pub(crate) fn secret(&self, name: &str) -> &str {
        &self.secrets[name]
    }
}

/// A wish with an owner and a claim of its own.
pub(crate) fn wish(name: &str, owner: &str, ttl_ms: u64) -> Value {
    json!({ "name": name, "owner": owner, "claim": "1", "ttl_ms": ttl_ms })
}

/// The same object with more in it.
pub(crate) fn and(mut object: Value, more: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut object, more) else { panic!("objects") };
    fields.extend(more);
    object
}
