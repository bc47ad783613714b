//! Stock that is never oversold: a hundred buyers, ten items.
//!
//! The stock is a file that each buyer reads, thinks about and writes back: the classic lost update. One
//! lock per item name makes the read and the write one step.
//!
//! `cargo run -p tenure-examples --example stock`

use std::path::Path;

use tenure::Tenure;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let stock = directory.path().join("stock");
    std::fs::write(&stock, "10")?;

    let tenure = Tenure::connect(format!("sqlite:{}", directory.path().join("locks.db").display())).await?;
    let buyer = |_| {
        let (lock, stock) = (tenure.lock("stock/lamp"), stock.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await?;
            let sold = guard.protect(buy(&stock)).await?;
            guard.release().await?;
            Ok::<bool, tenure::Error>(sold)
        })
    };
    let buyers: Vec<_> = (0..100).map(buyer).collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += u32::from(buyer.await??);
    }
    let left = std::fs::read_to_string(&stock)?;
    println!("a hundred buyers: {sold} sold, {left} left");
    assert_eq!((sold, left.as_str()), (10, "0"));
    Ok(())
}

/// Sells one if there is one.
async fn buy(stock: &Path) -> bool {
    let left: u32 = std::fs::read_to_string(stock).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    // The moment in which another buyer would come between.
    tokio::task::yield_now().await;
    left > 0 && std::fs::write(stock, (left - 1).to_string()).is_ok()
}
