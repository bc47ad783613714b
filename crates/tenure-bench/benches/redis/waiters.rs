//! What an operation costs the server as a queue grows.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure::backend::{Backend as _, ClaimRequest, RenewRequest, Shape};
use tenure::backends::redis::RedisBackend;
use tenure::clock::SystemClock;
use tenure::{ClaimId, Name, Owner};
use tenure_bench::{Report, Samples};
use tenure_testkit::servers::Redis;

use super::limit::{commands, scripts};

const SIZES: [usize; 3] = [100, 1_000, 10_000];
const OPS: usize = 200;

fn request() -> ClaimRequest {
    ClaimRequest {
        id: ClaimId::random(),
        owner: Owner::random(),
        label: "bench".into(),
        shape: Shape::Exclusive,
        ttl: Duration::from_secs(60),
        queue: true,
        block: 1,
        strict: false,
        inbox: "".into(),
        within: Vec::new(),
        reenter: None,
        solo: true,
        attempt: 0,
        presumed: Duration::ZERO,
    }
}

pub(crate) fn growing(server: &Redis, report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut table = Vec::new();
    runtime.block_on(async {
        let backend = RedisBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
        for size in SIZES {
            let name = Name::new(format!("queue/{size}")).unwrap();
            let mut queue = Vec::new();
            for _ in 0..=size {
                let request = request();
                queue.push(request.id);
                backend.claim(&name, request).await.unwrap();
            }
            let mut costs = Vec::new();
            for op in ["append", "renew", "release"] {
                let mut micros = Samples::default();
                let inside = commands(server);
                for turn in 0..OPS {
                    let before = scripts(server);
                    match op {
                        "append" => {
                            let request = request();
                            queue.push(request.id);
                            backend.claim(&name, request).await.unwrap();
                        }
                        "renew" => {
                            let id = queue[queue.len() * (turn + 1) / (OPS + 1)];
                            let renewal = RenewRequest { name: name.clone(), id, ttl: Duration::from_secs(60) };
                            backend.renew(vec![renewal], false).await.unwrap();
                        }
                        _ => {
                            let head = queue.remove(0);
                            backend.release(&name, head, None).await.unwrap();
                        }
                    }
                    let after = scripts(server);
                    micros.push(after.1 - before.1);
                }
                // Two looks at the statistics for each operation are not its own.
                let calls = (commands(server) - inside) / OPS as f64 - 2.0;
                costs.push(json!({ "op": op, "median_us": micros.median(), "calls": calls }));
            }
            table.push(json!({ "waiters": size, "costs": costs }));
            server.cli(&["FLUSHALL"]);
        }
    });
    for entry in &table {
        let costs: Vec<String> = entry["costs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cost| {
                format!(
                    "{} {:.0} µs ({:.1} calls)",
                    cost["op"].as_str().unwrap(),
                    cost["median_us"].as_f64().unwrap(),
                    cost["calls"].as_f64().unwrap()
                )
            })
            .collect();
        let what = format!("server time with {} waiters", entry["waiters"]);
        report.row(&what, &costs.join(", "), "O(log n)", true, entry);
    }
}
