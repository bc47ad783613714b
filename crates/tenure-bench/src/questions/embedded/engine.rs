//! Acquire and release in memory, alone and in a crowd: no clock is read between two pairs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure::Tenure;
use tenure_load::{BoxError, cpu_time};

const TASKS: u32 = 1_000;

/// One task, one name, nobody else: the time of a pair.
pub(super) fn pair(pairs: u32) -> Result<Value, String> {
    let measured = runtime(1)?.block_on(async {
        let tenure = Tenure::connect("memory:").await?;
        let lock = tenure.lock("orders/42");
        let mut took = Duration::ZERO;
        let mut cpu = cpu_time();
        // The first time warms up.
        for _ in 0..2 {
            let start = Instant::now();
            cpu = cpu_time();
            for _ in 0..pairs {
                lock.acquire().await?.release().await?;
            }
            took = start.elapsed();
        }
        Ok::<_, tenure::Error>((took, cpu_time() - cpu))
    });
    let (took, cpu) = measured.map_err(|error| error.to_string())?;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(pairs);
    Ok(json!({ "pair_us": each(took), "client_us_per_pair": each(cpu), "pairs": pairs }))
}

/// A thousand tasks on one name. All queue up before the first is let in, so that every turn is a hand-over.
pub(super) fn hand_over(turns: u32, threads: usize) -> Result<Value, String> {
    let measured = runtime(threads)?.block_on(async {
        let tenure = Tenure::connect("memory:").await?;
        let lock = tenure.lock("orders/42");
        let gate = lock.acquire().await?;
        let task = |_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                for _ in 0..turns {
                    drop(lock.acquire().await?);
                }
                Ok::<_, tenure::Error>(())
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(task).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (start, cpu) = (Instant::now(), cpu_time());
        drop(gate);
        for task in tasks {
            task.await??;
        }
        Ok::<_, BoxError>((start.elapsed(), cpu_time() - cpu))
    });
    let (took, cpu) = measured.map_err(|error| error.to_string())?;
    let all = f64::from(TASKS * turns);
    Ok(json!({ "acquisitions_per_s": all / took.as_secs_f64(), "client_us_per_turn": cpu.as_secs_f64() * 1e6 / all }))
}

fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, String> {
    let built = match threads {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        _ => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    };
    built.map_err(|error| error.to_string())
}
