//! What a look reads where 100,000 names are held and 100 of them waited for.

use std::sync::Arc;

use tenure::Tenure;
use tenure::backend::Backend;
use tenure::backends::postgres::PostgresBackend;
use tenure::backends::redis::RedisBackend;
use tenure::clock::SystemClock;
use tenure_testkit::servers::{Postgres, Redis};

use crate::ring::{eventually, wait_for};

const WAITED_FOR: usize = 100;
/// How many names one request asks for.
const PAGE: usize = 40;

/// Holds names that are waited for, until it is dropped.
async fn waited_for(url: &str) -> (Tenure, Vec<tenure::Guard>) {
    let tenure = Tenure::connect(url).await.unwrap();
    let (mut held, session) = (Vec::new(), tenure.session());
    for number in 0..WAITED_FOR {
        let name = format!("waited-for/{number}");
        held.push(tenure.lock(&name).acquire().await.unwrap());
        drop(wait_for(&session, &name));
    }
    for number in 0..WAITED_FOR {
        let name = format!("waited-for/{number}");
        eventually("it waits", async || !tenure.inspect(&name).await.unwrap().waiters.is_empty()).await;
    }
    (tenure, held)
}

/// How many requests it takes to find all of them.
async fn requests(backend: &dyn Backend) -> usize {
    let (mut found, mut requests, mut after) = (0, 0, None);
    loop {
        let page = backend.waited_for(after, PAGE).await.unwrap();
        (found, requests, after) = (found + page.views.len(), requests + 1, page.after);
        if after.is_none() {
            assert_eq!(found, WAITED_FOR);
            return requests;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_looks_into_queues_only() {
    let server = Redis::start();
    let (tenure, held) = waited_for(server.url()).await;
    let fill = "for i = 1, 100000 do redis.call('SET', 'tenure:{:held/' .. i .. '}', '1') end";
    server.cli(&["eval", fill, "0"]);
    let backend = RedisBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    let calls = |command: &str| -> u64 {
        let stats = server.cli(&["info", "commandstats"]);
        let line =
            stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls="))?.split(',').next());
        line.map_or(0, |calls| calls.parse().unwrap())
    };
    let before = (calls("scan"), calls("get"));
    assert_eq!(requests(&backend).await, WAITED_FOR.div_ceil(PAGE));
    let (scans, gets) = (calls("scan") - before.0, calls("get") - before.1);
    // A step of a scan goes through some thousand keys and sends those of queues.
    assert!(scans <= 150, "{scans} scans");
    assert!(gets <= 3 * WAITED_FOR as u64, "{gets} records read for {WAITED_FOR} names");
    drop((tenure, held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_sends_only_what_is_waited_for() {
    let server = Postgres::start();
    let (tenure, held) = waited_for(server.url()).await;
    let fill = "INSERT INTO tenure.names (name, id, number, ttl, token, block_end, granted, expires, client, last)
        SELECT 'held/' || i, i, i, 1, i, i, 1, 9e15, '{}', i FROM generate_series(1, 100000) i";
    server.psql(fill);
    let backend = PostgresBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    assert_eq!(requests(&backend).await, WAITED_FOR.div_ceil(PAGE));
    drop((tenure, held));
}
