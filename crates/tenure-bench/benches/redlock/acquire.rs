//! The time of one acquire, with all nodes up, with two hung and with two dead.

use std::time::Instant;

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples};
use tenure_testkit::servers::{Fleet, Redis};

use super::runtime;

const ROUNDS: usize = 10;
const TURNS: usize = 1_000;

/// Microseconds of each acquire; what is acquired is released before the next.
async fn acquires(tenure: &Tenure, samples: &mut Samples) {
    for turn in 0..TURNS {
        let lock = tenure.lock(format!("orders/{}", turn % 100));
        let start = Instant::now();
        let guard = lock.acquire().await.unwrap();
        samples.push(start.elapsed().as_secs_f64() * 1e6);
        guard.release().await.unwrap();
    }
}

/// In each round: one server, five of five, two of five hung, two of five dead.
pub(crate) fn latency(report: &mut Report) {
    let one = Redis::start();
    let (up, hung, dead) = (Fleet::start(5), Fleet::start(5), Fleet::start(5));
    let mut samples: [Samples; 4] = Default::default();
    let mut ratios: [Samples; 4] = Default::default();
    runtime().block_on(async {
        let urls = [one.url().to_owned(), up.url(), hung.url(), dead.url()];
        let mut clients = Vec::new();
        for url in &urls {
            clients.push(Tenure::connect(url).await.unwrap());
        }
        for client in &clients {
            acquires(client, &mut Samples::default()).await;
        }
        hung.nodes()[..2].iter().for_each(Redis::pause);
        dead.nodes()[..2].iter().for_each(Redis::kill);
        for _ in 0..ROUNDS {
            let mut medians = [0.0; 4];
            for (index, client) in clients.iter().enumerate() {
                let mut round = Samples::default();
                acquires(client, &mut round).await;
                medians[index] = round.median();
                samples[index].append(&round);
            }
            for (index, ratio) in ratios.iter_mut().enumerate() {
                ratio.push(medians[index] / medians[1]);
            }
        }
        // The first claims after a fault, while the client does not know of it yet.
        hung.nodes()[..2].iter().for_each(Redis::resume);
    });
    let what = ["one Redis", "5 of 5 up", "2 of 5 hung", "2 of 5 dead"];
    for (index, what) in what.iter().enumerate() {
        let (own, ratio) = (&samples[index], ratios[index].median());
        let figure = format!("p50 {:.0} p99 {:.0} µs", own.median(), own.percentile(99.0));
        let raw = json!({ "unit": "us", "p50": own.median(), "p99": own.percentile(99.0), "max": own.percentile(100.0),
            "p50_against_5_up": ratios[index].raw() });
        let (goal, met) = if index >= 2 { ("<= 1.2 of 5 up", ratio <= 1.2) } else { ("-", true) };
        report.row(&format!("acquire, {what}: {ratio:.2} of 5 up"), &figure, goal, met, &raw);
    }
}
