//! Stock that is never oversold: a hundred buyers, ten lamps.
//!
//! The stock is a row of a table. A buyer reads it, thinks, and writes back what it computed: the classic lost update.
//! The buyers are threads of several processes, so that no mutex of a program helps. A lock makes the read and the
//! write one step. It cannot stop a buyer that is paused for longer than its lease lasts; the fence of the table does.
//!
//! `cargo run -p tenure-examples --example stock`

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior::Immediate};
use tenure::blocking::{Guard, Tenure};
use tenure::fence::{sql, sqlite};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const LAMPS: u32 = 10;
const PROCESSES: usize = 4;
const THREADS: usize = 5;
/// How many lamps each thread would like.
const WISHES: usize = 5;
const NAME: &str = "stock/lamp";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [shop, way] = &*arguments {
        return buyers(Path::new(shop), way == "with");
    }
    let folder = tempfile::tempdir()?;
    let shop = folder.path();
    let database = open(shop)?;
    database.execute_batch(sql::TABLE)?;
    database.execute_batch("CREATE TABLE stock (lamps INTEGER); INSERT INTO stock VALUES (0)")?;
    for way in ["without", "with"] {
        database.execute("UPDATE stock SET lamps = ?1", [LAMPS])?;
        let sold = in_processes(shop, way)?;
        let left = lamps(&database)?;
        println!("{way} a lock: {LAMPS} lamps, {PROCESSES} processes of {THREADS} threads: {sold} sold, {left} left");
        assert!(way == "without" || (sold, left) == (LAMPS, 0));
    }
    late_buyer(shop)
}

fn open(shop: &Path) -> Outcome<Connection> {
    let database = Connection::open(shop.join("stock.db"))?;
    database.busy_timeout(Duration::from_secs(30))?;
    Ok(database)
}

fn locks(shop: &Path) -> Outcome<Tenure> {
    Ok(Tenure::connect(format!("sqlite:{}", shop.join("locks.db").display()))?)
}

/// Starts the processes, and adds up what they sold.
fn in_processes(shop: &Path, way: &str) -> Outcome<u32> {
    let start = |_| Command::new(std::env::current_exe()?).arg(shop).arg(way).stdout(Stdio::piped()).spawn();
    let processes: Vec<_> = (0..PROCESSES).map(start).collect::<Result<_, _>>()?;
    let mut sold = 0;
    for process in processes {
        let output = process.wait_with_output()?;
        sold += String::from_utf8(output.stdout)?.trim().parse::<u32>()?;
    }
    Ok(sold)
}

/// One process: prints how many lamps its threads have sold.
fn buyers(shop: &Path, with_lock: bool) -> Outcome<()> {
    let tenure = locks(shop)?;
    let buyer = || -> Outcome<u32> {
        let mut database = open(shop)?;
        let mut sold = 0;
        for _ in 0..WISHES {
            let guard = if with_lock { Some(tenure.lock(NAME).acquire()?) } else { None };
            let seen = lamps(&database)?;
            // The moment in which another buyer comes between.
            thread::sleep(Duration::from_millis(1));
            sold += u32::from(sell(&mut database, guard.as_ref(), seen)?);
            guard.map_or(Ok(()), Guard::release)?;
        }
        Ok(sold)
    };
    let sold = thread::scope(|threads| {
        let buyers: Vec<_> = (0..THREADS).map(|_| threads.spawn(buyer)).collect();
        let ended = buyers.into_iter().map(|buyer| buyer.join().unwrap_or_else(|_| Err("a buyer panicked".into())));
        ended.sum::<Outcome<u32>>()
    })?;
    println!("{sold}");
    Ok(())
}

fn lamps(database: &Connection) -> rusqlite::Result<u32> {
    database.query_row("SELECT lamps FROM stock", [], |row| row.get(0))
}

/// Sells a lamp to a buyer that has seen so many; false if there was none. With a guard the table checks its token in
/// the transaction that writes.
fn sell(database: &mut Connection, guard: Option<&Guard>, seen: u32) -> Outcome<bool> {
    let Some(left) = seen.checked_sub(1) else { return Ok(false) };
    let transaction = database.transaction_with_behavior(Immediate)?;
    let write = "UPDATE stock SET lamps = ?1";
    match guard {
        Some(guard) => sqlite::update(&transaction, NAME, &guard.fence()?, write, [left])?,
        None => transaction.execute(write, [left])?,
    };
    transaction.commit()?;
    Ok(true)
}

/// Sees one lamp, and is paused until somebody else has bought it.
fn late_buyer(shop: &Path) -> Outcome<()> {
    let (tenure, mut database) = (locks(shop)?, open(shop)?);
    database.execute("UPDATE stock SET lamps = 1", [])?;
    // A lease that nobody renews stands for a process in which nothing runs any more.
    let paused = tenure.lock(NAME).ttl(Duration::from_millis(100)).no_renewal().acquire()?;
    let seen = lamps(&database)?;
    let next = tenure.lock(NAME).acquire()?;
    assert!(sell(&mut database, Some(&next), seen)?);
    match sell(&mut database, Some(&paused), seen) {
        Err(refusal) => println!("a buyer that was paused for longer than its lease: {refusal}"),
        Ok(_) => return Err("the last lamp was sold twice".into()),
    }
    Ok(())
}
