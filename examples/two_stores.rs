//! An order processed across two stores: both locks, or none of them.
//!
//! The order is locked where orders are kept, its payment where payments are. Half of the workers name the order first,
//! half the payment: all take them in the same order, so nobody waits for ever. If one of the two cannot be had, the
//! other is given back.
//!
//! `cargo run -p tenure-examples --example two_stores`, or with two URLs: `-- redis://127.0.0.1 sqlite:/tmp/locks.db`

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{ErrorKind, MultiLock, Tenure, Token};

const WORKERS: usize = 8;
const ORDERS: u32 = 5;

/// For each order that was processed, under which tokens.
type Book = Arc<Mutex<BTreeMap<u32, String>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let mut urls = std::env::args().skip(1);
    let orders = Tenure::connect(urls.next().unwrap_or_else(|| file("orders.db"))).await?;
    let payments = Tenure::connect(urls.next().unwrap_or_else(|| file("payments.db"))).await?;

    let book = Book::default();
    let worker = |number| tokio::spawn(work(number, orders.clone(), payments.clone(), book.clone()));
    let workers: Vec<_> = (0..WORKERS).map(worker).collect();
    let mut processed = 0;
    for worker in workers {
        processed += worker.await??;
    }
    for (order, tokens) in &*book.lock().unwrap_or_else(PoisonError::into_inner) {
        println!("order {order}: {tokens}");
    }
    println!("{WORKERS} workers, {ORDERS} orders: {processed} processed, each once");
    assert_eq!(processed, ORDERS);

    // The payment is busy: nothing is held of the order either.
    let in_the_way = payments.lock("payments/7").acquire().await?;
    let both = MultiLock::of([orders.lock("orders/7"), payments.lock("payments/7")]);
    assert!(both.try_acquire().await?.is_none());
    let late = both.acquire_within(Duration::from_millis(50)).await.err().ok_or("both were granted")?;
    assert_eq!(late.kind(), ErrorKind::Timeout);
    // Nor if whoever wanted both has gone away.
    assert!(tokio::time::timeout(Duration::from_millis(50), both.acquire()).await.is_err());
    let order = orders.lock("orders/7").acquire_within(Duration::from_secs(10)).await?;
    println!("while the payment of order 7 was busy: {late}; the order was given back");
    drop((order, in_the_way));
    orders.close().await?;
    payments.close().await?;
    Ok(())
}

/// Processes every order that nobody has processed yet, and answers how many.
async fn work(number: usize, orders: Tenure, payments: Tenure, book: Book) -> Result<u32, tenure::Error> {
    let mut processed = 0;
    for order in 0..ORDERS {
        let mut locks = vec![orders.lock(format!("orders/{order}")), payments.lock(format!("payments/{order}"))];
        if number % 2 == 1 {
            locks.reverse();
        }
        let both = MultiLock::of(locks).acquire().await?;
        let tokens: Vec<String> =
            both.guards().iter().map(|held| format!("{} under {}", held.name(), shown(held.token()))).collect();
        // Stops at once should either lease be lost.
        let is_new = both.protect(process(&book, order, tokens.join(", "))).await?;
        processed += u32::from(is_new);
        both.release().await?;
    }
    Ok(processed)
}

fn shown(token: Option<Token>) -> String {
    token.map_or_else(|| "no token".to_owned(), |token| format!("token {token}"))
}

/// Looks, thinks, and writes: false if the order was processed before.
async fn process(book: &Book, order: u32, tokens: String) -> bool {
    let is_new = !book.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&order);
    tokio::task::yield_now().await;
    if is_new {
        book.lock().unwrap_or_else(PoisonError::into_inner).insert(order, tokens);
    }
    is_new
}
