//! Many who want the same name: all get it, and about equally often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::Tenure;

use crate::support::{LIMIT, Nodes, TTL, until};

#[derive(Default)]
struct Turns {
    waited: Vec<Vec<Duration>>,
}

impl Turns {
    fn count(&self) -> usize {
        self.waited.iter().map(Vec::len).sum()
    }

    /// 1 if all had the same share, 1/n if one had it all.
    fn jain(&self) -> f64 {
        let shares: Vec<f64> = self.waited.iter().map(|turns| f64::from(u32::try_from(turns.len()).unwrap())).collect();
        let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
        sum * sum / (squares * f64::from(u32::try_from(shares.len()).unwrap()))
    }

    fn print(&self) {
        let mut all: Vec<Duration> = self.waited.iter().flatten().copied().collect();
        all.sort();
        let at = |percent: usize| all[(all.len() - 1) * percent / 100];
        let mean = all.iter().sum::<Duration>() / u32::try_from(all.len()).unwrap();
        println!(
            "{} contenders, {} turns: Jain {:.3}; time to acquire: mean {mean:?}, median {:?}, p99 {:?}, longest {:?}",
            self.waited.len(),
            all.len(),
            self.jain(),
            at(50),
            at(99),
            at(100),
        );
    }
}

async fn contend(clients: &[Tenure], turns: usize) -> Turns {
    let over = Arc::new(AtomicBool::new(false));
    let record = Arc::new(std::sync::Mutex::new(Turns { waited: vec![Vec::new(); clients.len()] }));
    let tasks: Vec<_> = (0..clients.len())
        .map(|index| {
            let (client, over, record) = (clients[index].clone(), over.clone(), record.clone());
            tokio::spawn(async move {
                let lock = client.lock("x").ttl(TTL);
                while !over.load(Ordering::SeqCst) {
                    let asked = client.clock().now();
                    let guard = lock.acquire_within(LIMIT).await.unwrap();
                    record.lock().unwrap().waited[index].push(client.clock().now().since(asked));
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    until("everybody has had a turn, and all have had so many", async || {
        let record = record.lock().unwrap();
        record.count() >= turns && record.waited.iter().all(|turns| !turns.is_empty())
    })
    .await;
    over.store(true, Ordering::SeqCst);
    let so_far = Turns { waited: record.lock().unwrap().waited.clone() };
    for task in tasks {
        tokio::time::timeout(LIMIT, task).await.expect("those who wait still get it").unwrap();
    }
    so_far
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vote_is_not_split_for_ever() {
    let nodes = Nodes::start();
    for (contenders, turns) in [(2, 100), (8, 200), (32, 320)] {
        let mut clients = Vec::new();
        for _ in 0..contenders {
            clients.push(nodes.client().await);
        }
        let turns = contend(&clients, turns).await;
        turns.print();
        assert!(turns.jain() > 0.5, "{}", turns.jain());
    }
}
