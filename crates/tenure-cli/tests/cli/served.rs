//! Instances of the service for the tests: started, called and ended with the test.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{BIN, Store, bare, done, eventually};

/// Longer than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// An instance, ended with the test.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: String,
    log: PathBuf,
}

impl Served {
    /// `tenure --on URL serve --listen 127.0.0.1:0 --json ARGS`, once it listens.
    pub(crate) fn start(store: &Store, args: &[&str]) -> Self {
        Self::start_as(store, store.command([]), args)
    }

    /// The same by a shell that sets a limit first: `ulimit LIMIT`.
    pub(crate) fn start_limited(store: &Store, limit: &str, args: &[&str]) -> Self {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\""), BIN, "--on", &store.url()]);
        Self::start_as(store, shell, args)
    }

    fn start_as(store: &Store, mut command: Command, args: &[&str]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (out, log) = (store.file(&format!("out-{number}")), store.file(&format!("log-{number}")));
        command.args(["serve", "--listen", "127.0.0.1:0", "--json"]).args(args).stdin(Stdio::null());
        let child = command.stdout(File::create(&out).unwrap()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        let mut served = Self { child, address: String::new(), log };
        eventually("it listens", || {
            assert!(served.child.try_wait().unwrap().is_none(), "it ended: {}", served.said());
            let Ok(told) = serde_json::from_str::<Value>(&fs::read_to_string(&out).unwrap()) else { return false };
            let url = told["listening"].as_str().unwrap();
            served.address = url.split_once("://").unwrap().1.to_owned();
            true
        });
        served
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for its end; answers its exit code.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    pub(crate) fn call(&self, method: &str, path: &str, bearer: &str, body: Value) -> (u16, Value) {
        call(&self.address, method, path, bearer, body).expect("an answer")
    }

    pub(crate) fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.call("POST", path, "", body)
    }

    /// The owners of those who wait, in order, as others see them.
    pub(crate) fn waiters(&self, name: &str) -> Vec<String> {
        let (status, view) = self.call("GET", &format!("/v1/lock?name={name}"), "", Value::Null);
        assert_eq!(status, 200, "{view}");
        let waiters = view["waiters"].as_array().unwrap().iter();
        waiters.map(|waiter| waiter["owner"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own; none if it was not answered.
pub(crate) fn call(address: &str, method: &str, path: &str, bearer: &str, body: Value) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request(method, path, bearer, &body).as_bytes()).ok()?;
    answer(stream)
}

/// A request as it is sent.
pub(crate) fn request(method: &str, path: &str, bearer: &str, body: &Value) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let bearer = if bearer.is_empty() { String::new() } else { format!("authorization: Bearer {bearer}\r\n") };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{bearer}content-type: application/json\r\n\
        content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn answer(mut stream: TcpStream) -> Option<(u16, Value)> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or_else(|_| body.into())))
}

/// A request that was sent but for its last byte.
pub(crate) struct Half {
    stream: TcpStream,
    last: u8,
}

impl Half {
    pub(crate) fn of(address: &str, path: &str, body: &Value) -> Self {
        let request = request("POST", path, "", body);
        let (last, most) = request.as_bytes().split_last().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(most).unwrap();
        Self { stream, last: *last }
    }

    /// Sends what is missing.
    pub(crate) fn rest(mut self) -> (u16, Value) {
        self.stream.write_all(&[self.last]).unwrap();
        answer(self.stream).expect("an answer")
    }
}

pub(crate) fn random(stem: &str) -> String {
    format!("{stem}-{:016x}", rand::random::<u64>())
}

pub(crate) fn wish(name: &str, owner: &str, wait_ms: u64) -> Value {
    json!({ "name": name, "owner": owner, "claim": "1", "ttl_ms": 20_000, "wait_ms": wait_ms })
}

pub(crate) fn claim(name: &str, owner: &str) -> Value {
    json!({ "name": name, "owner": owner, "claim": "1" })
}

/// Makes a token; answers its secret and its entry.
pub(crate) fn token(args: &[&str]) -> (String, String) {
    let made = done(bare(&["serve", "token", "--json"]).args(args)).exits(0).json();
    (made["secret"].as_str().unwrap().to_owned(), made["entry"].as_str().unwrap().to_owned())
}

/// An authority, and certificates of a server and a client that it has signed.
pub(crate) fn certificates(folder: &Path, authority: &str) {
    let config = "[req]\ndistinguished_name = name\n[name]\n\
        [authority]\nbasicConstraints = critical, CA:TRUE\n\
        [server]\nbasicConstraints = critical, CA:FALSE\nsubjectAltName = IP:127.0.0.1\nextendedKeyUsage = serverAuth\n\
        [client]\nbasicConstraints = critical, CA:FALSE\nextendedKeyUsage = clientAuth\n";
    fs::write(folder.join("openssl.cnf"), config).unwrap();
    for who in ["authority", "server", "client"] {
        let file = |end: &str| format!("{authority}-{who}.{end}");
        let mut openssl = Command::new("openssl");
        openssl.current_dir(folder).args(["req", "-x509", "-config", "openssl.cnf", "-extensions", who, "-nodes"]);
        openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "30", "-subj"]);
        openssl.args([&format!("/CN={who}"), "-keyout", &file("key"), "-out", &file("crt")]);
        if who != "authority" {
            let by = |end: &str| format!("{authority}-authority.{end}");
            openssl.args(["-CA", &by("crt"), "-CAkey", &by("key")]);
        }
        let made = openssl.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}
