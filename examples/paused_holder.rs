//! The paused holder, with and without a fence.
//!
//! A holder reads a balance, is paused (a garbage collector, a sleeping laptop, a slow disk) for longer than
//! its lease, and writes back what it computed, long after somebody else has held the lock. No lease can
//! prevent that. The fencing token can: the gate refuses the write.
//!
//! `cargo run -p tenure-examples --example paused_holder`

use std::time::Duration;

use tenure::fence::Gate;
use tenure::{Guard, Tenure};

const TTL: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = Tenure::connect("memory:").await?;

    // Without a fence: the late write wins, and 50 are gone.
    let balance = std::sync::Mutex::new(100);
    let read = |_: &Guard| *balance.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let write = |_: &Guard, new| *balance.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = new;
    let (late, timely) = race(&tenure, read).await?;
    write(&timely.0, timely.1 + 50);
    write(&late.0, late.1 + 7);
    println!("without a fence: 100 + 50 + 7 = {}", read(&late.0));
    drop((late, timely));

    // With a fence: the late write is refused, and its author knows.
    let balance = Gate::new(100);
    let (late, timely) = race(&tenure, |guard| balance.read(guard, |balance| *balance).unwrap_or(0)).await?;
    balance.write(&timely.0, |balance| *balance = timely.1 + 50)?;
    let refused = balance.write(&late.0, |balance| *balance = late.1 + 7);
    let Err(refusal) = refused else { return Err("the gate let a stale holder through".into()) };
    println!("with a fence: {refusal}; the balance is {}", balance.into_inner());
    Ok(())
}

type Reading = (Guard, i32);

/// One holder reads and is paused past its deadline; the next reads meanwhile. Both still have their guards.
async fn race(tenure: &Tenure, read: impl Fn(&Guard) -> i32) -> Result<(Reading, Reading), tenure::Error> {
    // A lease that nobody renews stands for a process in which nothing runs any more.
    let paused = tenure.lock("account/7").ttl(TTL).no_renewal().acquire().await?;
    let early = read(&paused);
    let next = tenure.lock("account/7").acquire().await?;
    let current = read(&next);
    assert!(!paused.is_held(), "it could ask, and would be told");
    Ok(((paused, early), (next, current)))
}
