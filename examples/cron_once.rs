//! A cron job on ten hosts that runs once.
//!
//! All ten start at the same minute. The lock lets one of them look at a time, and what it finds tells it
//! whether the night's work is still to be done: the lock orders the hosts, the record makes it once.
//!
//! `cargo run -p tenure-examples --example cron_once`

use tenure::Tenure;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("locks.db").display());
    let record = directory.path().join("last-run");
    let tonight = "2026-11-15";

    let host = |number: u32| {
        let (url, record) = (url.clone(), record.clone());
        async move {
            let tenure = Tenure::builder(url).label(format!("host-{number}")).connect().await?;
            let guard = tenure.lock("nightly").acquire().await?;
            let done = std::fs::read_to_string(&record).is_ok_and(|last| last == tonight);
            if !done {
                // Stops at once should the lease be lost, a stalled disk say.
                guard.protect(report(number)).await?;
                std::fs::write(&record, tonight)?;
            }
            guard.release().await?;
            Ok::<bool, Box<dyn std::error::Error + Send + Sync>>(!done)
        }
    };
    let hosts: Vec<_> = (0..10).map(|number| tokio::spawn(host(number))).collect();
    let mut runs = 0;
    for host in hosts {
        if host.await?.map_err(|error| error.to_string())? {
            runs += 1;
        }
    }
    println!("ten hosts, {runs} report");
    assert_eq!(runs, 1);
    Ok(())
}

async fn report(host: u32) {
    println!("host-{host} writes the report");
}
