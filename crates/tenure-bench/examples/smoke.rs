use std::time::{Duration, Instant};
use tenure::Tenure;
fn main() {
    for threads in [0usize, 2] {
        let rt = if threads == 0 {
            tokio::runtime::Builder::new_current_thread().enable_all().build()
        } else {
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
        }
        .unwrap();
        rt.block_on(async {
            let t = Tenure::connect("memory:").await.unwrap();
            let lock = t.lock("a");
            let start = Instant::now();
            for _ in 0..500_000 {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
            println!("threads {threads}: pair {:?}", start.elapsed() / 500_000);
            let start = Instant::now();
            let n = 2000;
            let tasks: Vec<_> = (0..1000)
                .map(|_| {
                    let lock = lock.clone();
                    tokio::spawn(async move {
                        for _ in 0..n {
                            let g = lock.acquire().await.unwrap();
                            drop(g);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let e = start.elapsed();
            println!("handovers/s {:.0}", 1000.0 * n as f64 / e.as_secs_f64());
            let mut held = Vec::new();
            for i in 0..100_000 {
                held.push(t.lock(format!("n{i}")).acquire().await.unwrap());
            }
            let cpu = || {
                let u = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
                u.tv_sec as f64 + u.tv_nsec as f64 / 1e9
            };
            tokio::time::sleep(Duration::from_secs(1)).await;
            let c = cpu();
            let s = Instant::now();
            tokio::time::sleep(Duration::from_secs(10)).await;
            println!("cpu {:.2}%", (cpu() - c) / s.elapsed().as_secs_f64() * 100.0);
            println!("held {}", held.iter().filter(|g| g.is_held()).count());
        });
    }
}
