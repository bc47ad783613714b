//! One measurement after the other.

use tenure_load::order::{HotResult, LeasesResult, PairsResult};
use tenure_load::{Samples, epoch_micros, jain};

use super::crew::Crew;
use super::plan::Plan;
use super::report::{Held, Hot, Report, Uncontended, figure};
use crate::failure::Failure;
use crate::line::Line;

/// From the word to start until the start: time for every process to hear it.
const START_IN_US: u64 = 200_000;

/// Takes all figures. Workers that are at it when this is dropped stay with the crew.
pub(super) async fn all(plan: &Plan, crew: &mut Crew, line: &mut Option<Line>) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut step = 0;
    let mut show = |what: String| {
        step += 1;
        if let Some(line) = line {
            let text = format!("tenure: {step} of {}: {what}", plan.steps());
            line.draw(|width| text.chars().take(width).collect());
        }
    };
    for &tasks in &plan.tasks {
        show(format!("uncontended pairs, tasks: {tasks}"));
        report.uncontended.push(uncontended(plan, crew, tasks).await?);
    }
    for (measurement, &processes) in plan.processes.iter().enumerate() {
        show(format!("one name, processes: {processes}"));
        report.hot.push(hot(plan, crew, measurement, processes).await?);
    }
    for &leases in &plan.leases {
        show(format!("leases held: {leases}"));
        report.held.push(held(plan, crew, leases).await?);
    }
    Ok(report)
}

async fn uncontended(plan: &Plan, crew: &mut Crew, tasks: usize) -> Result<Uncontended, Failure> {
    crew.start(1, &plan.pairs(tasks)).await?;
    let results: Vec<PairsResult> = crew.results().await?;
    let pairs: u64 = results.iter().map(|result| result.pairs).sum();
    let first = results.first();
    Ok(Uncontended {
        tasks,
        pairs_per_s: figure(pairs as f64 / plan.seconds, 1).unwrap_or(0.0),
        p50_us: first.and_then(|result| figure(result.p50_us?, 1)),
        p99_us: first.and_then(|result| figure(result.p99_us?, 1)),
    })
}

async fn hot(plan: &Plan, crew: &mut Crew, measurement: usize, processes: usize) -> Result<Hot, Failure> {
    crew.start(processes, &plan.hot(measurement)).await?;
    // Each says that it is ready.
    crew.lines().await?;
    crew.tell(&(epoch_micros() + START_IN_US).to_string()).await;
    Ok(taken_together(&crew.results().await?, plan.seconds))
}

/// The turns of all processes in the order they had them, on the clock they share.
fn taken_together(results: &[HotResult], seconds: f64) -> Hot {
    let mut turns: Vec<(u64, usize)> = Vec::new();
    for (process, result) in results.iter().enumerate() {
        turns.extend(result.turns.iter().map(|(got, _, _)| (*got, process)));
    }
    turns.sort_unstable();
    let transfers = turns.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    // Waits under way at the end have lasted at least that long: left out, whoever starved would not show.
    let had = results.iter().flat_map(|result| result.turns.iter().map(|(_, wait, _)| *wait));
    let open = results.iter().flat_map(|result| result.waiting.iter().map(|(_, wait)| *wait));
    let waits: Samples = had.chain(open).map(|wait| wait as f64).collect();
    let [p50, p99] = waits.percentiles([50.0, 99.0]);
    let shares: Vec<f64> = results.iter().map(|result| result.turns.len() as f64).collect();
    Hot {
        processes: results.len(),
        acquisitions_per_s: figure(turns.len() as f64 / seconds, 1).unwrap_or(0.0),
        transfers_per_s: figure(transfers as f64 / seconds, 1).unwrap_or(0.0),
        wait_p50_us: figure(p50, 1),
        wait_p99_us: figure(p99, 1),
        jain: figure(jain(&shares), 4),
    }
}

async fn held(plan: &Plan, crew: &mut Crew, leases: usize) -> Result<Held, Failure> {
    crew.start(1, &plan.held(leases)).await?;
    let results: Vec<LeasesResult> = crew.results().await?;
    let first = results.first();
    Ok(Held {
        leases,
        cpu_percent: first.and_then(|result| figure(result.cpu_percent, 2)),
        bytes_per_lease: first.and_then(|result| figure(result.bytes_per_lease, 0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_put_in_order_before_hand_overs_are_counted() {
        let result = |turns: &[(u64, u64)]| HotResult {
            turns: turns.iter().map(|(got, wait)| (*got, *wait, 0)).collect(),
            ..HotResult::default()
        };
        // a b b a a b
        let starved = HotResult { waiting: vec![(0, 50)], ..result(&[(2, 20), (3, 1), (6, 40)]) };
        let hot = taken_together(&[result(&[(1, 10), (4, 30), (5, 1)]), starved], 2.0);
        assert_eq!((hot.processes, hot.acquisitions_per_s, hot.transfers_per_s), (2, 3.0, 1.5));
        assert_eq!((hot.wait_p50_us, hot.wait_p99_us, hot.jain), (Some(20.0), Some(50.0), Some(1.0)));
    }

    #[test]
    fn where_nobody_had_a_turn_there_is_no_wait_and_no_fairness() {
        let hot = taken_together(&[HotResult::default(), HotResult::default()], 1.0);
        assert_eq!((hot.acquisitions_per_s, hot.wait_p50_us, hot.jain), (0.0, None, None));
    }
}
