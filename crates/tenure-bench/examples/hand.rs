use std::time::Instant;
use tenure::Tenure;
fn main() {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let t = Tenure::connect("memory:").await.unwrap();
        let lock = t.lock("a");
        let n = 5000;
        let start = Instant::now();
        let tasks: Vec<_> = (0..1000).map(|_| { let lock = lock.clone(); tokio::spawn(async move { for _ in 0..n { let g = lock.acquire().await.unwrap(); tokio::task::yield_now().await; drop(g); } }) }).collect();
        for task in tasks { task.await.unwrap(); }
        println!("handovers/s {:.0}", 1000.0 * n as f64 / start.elapsed().as_secs_f64());
    });
}
