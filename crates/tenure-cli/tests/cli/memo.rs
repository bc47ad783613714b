//! `memo`: what the library wrote is read by the command.

use std::time::Duration;

use serde_json::Value;
use tenure::{Certainty, Tenure};

use crate::support::{Store, keys};

/// Writes a memo as a program does.
fn write(store: &Store, name: &str, bytes: &[u8]) -> (u64, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tenure = Tenure::connect(store.url()).await.unwrap();
        let guard = tenure.lock(name).ttl(Duration::from_secs(60)).acquire().await.unwrap();
        let version = loop {
            match guard.write_memo(bytes).await {
                Err(error) if error.certainty() == Certainty::Unknown => {}
                written => break written.unwrap(),
            }
        };
        let token = guard.token().unwrap().get();
        guard.release().await.unwrap();
        (token, version)
    })
}

#[test]
fn a_memo_is_printed_as_it_is_and_told_in_json() {
    let store = Store::new();
    let bytes = b"rows 1 to 500\n\x00\xff";
    let (token, version) = write(&store, "import", bytes);
    assert_eq!(store.tenure("memo import").exits(0).stdout, bytes);
    let told = store.tenure("memo import --json").exits(0).json();
    assert_eq!(keys(&told), ["age_ms", "kind", "name", "token", "value", "version"]);
    assert_eq!((told["token"].as_u64(), told["version"].as_u64()), (Some(token), Some(version)));
    assert_eq!((told["kind"].as_str(), told["name"].as_str()), (Some("user"), Some("import")));
    assert_eq!(told["value"], "cm93cyAxIHRvIDUwMAoA/w==");
}

#[test]
fn a_name_without_a_memo_is_1_and_says_so() {
    let store = Store::new();
    store.tenure("memo x").exits(1).says("x: no memo is kept with this name");
    store.tenure("acquire x").exits(0);
    assert_eq!(store.tenure("memo x --json").exits(1).json(), Value::Null);
    store.tenure("memo").exits(64);
}
