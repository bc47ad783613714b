//! A holder is stopped by SIGSTOP past its ttl. The next holder writes. When the first goes on, its write is refused.

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use axum::Extension;
use axum::response::Response;
use rusqlite::Connection;
use rusqlite::TransactionBehavior::Immediate;
use tenure::Tenure;
use tenure::fence::http::{FenceLayer, refusal};
use tenure::fence::{Failure, Fence, postgres, redis as fence_redis, sql, sqlite};
use tenure_testkit::servers::shared;

use crate::process::{self, Process};
use crate::resource::{connect, in_redis, postgres_url};

const RESOURCE: &str = "stock/42";
const TTL: Duration = Duration::from_secs(1);

/// Both parts, the holder's and the test's, which answers the address. `write` puts a word into the resource at an
/// address, under a fence.
async fn paused<E: Display>(
    test: &str,
    place: impl FnOnce() -> (String, String),
    write: impl AsyncFn(&str, Fence, &str) -> Result<(), E>,
) -> Option<String> {
    if let Some((store, resource)) = process::addresses() {
        let tenure = Tenure::connect(store).await.unwrap();
        let guard = tenure.lock(RESOURCE).ttl(TTL).acquire().await.unwrap();
        process::tell(&guard.token().unwrap().to_string());
        if process::told() {
            // It does not ask whether the lease is lost: nobody can ask at the right moment.
            let written = write(&resource, guard.fence().unwrap(), "late").await;
            process::tell(&written.map_or_else(|error| error.to_string(), |()| "accepted".to_owned()));
        }
        return None;
    }
    let (store, resource) = place();
    let mut holder = Process::start(test, &store, &resource);
    let stale = holder.hear();
    holder.pause();
    let tenure = Tenure::connect(store).await.unwrap();
    let lock = tenure.lock(RESOURCE).ttl(Duration::from_secs(600));
    let next = lock.acquire_within(Duration::from_secs(60)).await.unwrap();
    let written = write(&resource, next.fence().unwrap(), "next").await;
    assert!(written.is_ok(), "the next holder: {}", written.unwrap_err());
    holder.go_on();
    let said = holder.hear();
    let newer = next.token().unwrap();
    assert!(said.contains(&format!("token {stale} is stale: {newer} has been accepted")), "{said}");
    Some(resource)
}

fn write_sqlite(path: &str, fence: &Fence, word: &str) -> Result<(), Failure<rusqlite::Error>> {
    let mut database = Connection::open(path).map_err(Failure::Store)?;
    let transaction = database.transaction_with_behavior(Immediate).map_err(Failure::Store)?;
    sqlite::update(&transaction, RESOURCE, fence, "UPDATE stock SET word = ?1", [word])?;
    transaction.commit().map_err(Failure::Store)
}

/// The URL of a store for locks, and the path of a database with a resource.
fn files(folder: &Path) -> (String, String) {
    let path = folder.join("resource.db").display().to_string();
    let database = Connection::open(&path).unwrap();
    database.execute_batch(sql::TABLE).unwrap();
    database.execute_batch("CREATE TABLE stock (word TEXT); INSERT INTO stock VALUES ('first')").unwrap();
    (format!("sqlite:{}", folder.join("locks.db").display()), path)
}

fn word(path: &str) -> String {
    Connection::open(path).unwrap().query_row("SELECT word FROM stock", [], |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_refuses_a_paused_holder() {
    let folder = tempfile::tempdir().unwrap();
    let place = || files(folder.path());
    let write = async |path: &str, fence: Fence, word: &str| write_sqlite(path, &fence, word);
    let Some(path) = paused("paused::sqlite_refuses_a_paused_holder", place, write).await else { return };
    assert_eq!(word(&path), "next");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_refuses_a_paused_holder() {
    let place = || {
        let url = postgres_url();
        shared::postgres().psql("CREATE TABLE stock (word TEXT); INSERT INTO stock VALUES ('first')");
        (url.to_owned(), url.to_owned())
    };
    let write = async |url: &str, fence: Fence, word: &str| {
        let mut client = connect(url).await;
        let transaction = client.transaction().await.map_err(Failure::Store)?;
        postgres::update(&transaction, RESOURCE, &fence, "UPDATE stock SET word = $1", &[&word]).await?;
        transaction.commit().await.map_err(Failure::Store)
    };
    let Some(_) = paused("paused::postgres_refuses_a_paused_holder", place, write).await else { return };
    assert_eq!(shared::postgres().psql("SELECT word FROM stock"), "next");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_refuses_a_paused_holder() {
    let key = format!("stock:{{{RESOURCE}}}");
    let place = || {
        let url = shared::redis().url();
        (url.to_owned(), url.to_owned())
    };
    let write = async |url: &str, fence: Fence, word: &str| {
        fence_redis::set(&mut in_redis(url).await, RESOURCE, &fence, &key, word).await
    };
    let Some(_) = paused("paused::redis_refuses_a_paused_holder", place, write).await else { return };
    assert_eq!(shared::redis().cli(&["GET", &key]).trim(), "next");
}

/// A service over a resource in SQLite; answers its address.
fn serve(path: &str) -> String {
    let (seen, path) = (path.to_owned(), path.to_owned());
    let layer = FenceLayer::new(move |_: &axum::http::request::Parts, fence| {
        let looked = Connection::open(&seen).map_err(Failure::Store);
        let looked = looked.and_then(|database| sqlite::look(&database, RESOURCE, &fence));
        async move { looked }
    });
    let put = async move |Extension(fence): Extension<Fence>, word: String| -> Response {
        match write_sqlite(&path, &fence, &word) {
            Ok(()) => Response::default(),
            Err(Failure::Refused(refused)) => refusal(&refused),
            Err(Failure::Store(error)) => panic!("{error}"),
        }
    };
    let service = axum::Router::new().route("/stock", axum::routing::put(put)).layer(layer);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    tokio::spawn(async { axum::serve(listener, service).await });
    address
}

/// As a client in any language does it.
fn put(address: &str, fence: &Fence, word: &str) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let headers: String = fence.headers().map(|(name, value)| format!("{name}: {value}\r\n")).concat();
    let length = word.len();
    let head =
        format!("PUT /stock HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
    stream.write_all(format!("{head}{word}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    if answer.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    assert!(answer.starts_with("HTTP/1.1 412 "), "{answer}");
    Err(answer.replace("\r\n", " "))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_refuses_a_paused_holder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resource.db").display().to_string();
    let place = || {
        let (store, path) = files(folder.path());
        (store, serve(&path))
    };
    let write =
        async |address: &str, fence: Fence, word: &str| tokio::task::block_in_place(|| put(address, &fence, word));
    let Some(_) = paused("paused::a_service_refuses_a_paused_holder", place, write).await else { return };
    assert_eq!(word(&path), "next");
}
