//! Several instances in one URL: it does not matter which of them is sick, nor in which order they stand.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::Tenure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::support::{Instance, Look, PATIENCE, instance, name, redis};

/// Holds a name, waits for it, and is granted it, by way of an instance that is sick and one that is not.
async fn serves(sick: SocketAddr, well: &Instance, store: &str) {
    let look = Look::at(store).await;
    let url = format!("http://{sick},{}", well.address);
    let tenure = timeout(PATIENCE, Tenure::connect(&url)).await.expect("an answer").unwrap();
    let name = name("several");
    let lock = tenure.lock(&name).ttl(Duration::from_secs(20));
    let guard = timeout(PATIENCE, lock.try_acquire()).await.expect("an answer").unwrap().expect("it is free");
    let waits = tokio::spawn({
        let (tenure, name) = (tenure.clone(), name.clone());
        async move { tenure.lock(&name).ttl(Duration::from_secs(20)).acquire_within(PATIENCE).await.is_ok() }
    });
    look.until(&name, (1, 1)).await;
    timeout(PATIENCE, guard.release()).await.expect("an answer").unwrap();
    assert!(timeout(PATIENCE, waits).await.expect("an answer").unwrap(), "who waits is granted it");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_hangs_first_in_the_list_costs_little() {
    let (store, hangs) = (redis().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let well = instance(&store).await;
    // The system takes the connections, and nobody ever reads them: as of a process that is stopped.
    serves(hangs.local_addr().unwrap(), &well, &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_answers_503_first_in_the_list_costs_nothing() {
    let (store, refuses) = (redis().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (well, address) = (instance(&store).await, refuses.local_addr().unwrap());
    // As a proxy with nothing behind it, or an instance whose store is gone.
    let refusing = tokio::spawn(async move {
        loop {
            let (mut stream, _) = refuses.accept().await.unwrap();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4_096]).await;
                let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer).await;
            });
        }
    });
    serves(address, &well, &store).await;
    refusing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stops_first_in_the_list_costs_nothing() {
    let store = redis().await;
    let (stops, well) = (instance(&store).await, instance(&store).await);
    let _under_way = stops.half_sent().await;
    stops.get("/healthz").await.is(200);
    stops.running.stop();
    serves(stops.address, &well, &store).await;
}
