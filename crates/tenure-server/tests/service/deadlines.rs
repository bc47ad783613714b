//! The deadline that a caller computes is never later than the store's: nobody else is granted the name before it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::support::{Client, Look, and, instance, name, over, wish};

const TTL: u64 = 2_000;

/// The caller's clock before the request was sent, and what the answer says is left.
fn deadline(sent: Instant, answer: &Value) -> Instant {
    let left = answer["expires_in_ms"].as_u64().unwrap();
    assert!(left <= answer["ttl_ms"].as_u64().unwrap(), "{answer}");
    sent + Duration::from_millis(left)
}

/// Asks for the name again and again, also where a busy store leaves a request unanswered; answers when it was had.
async fn had_at(client: &Client, name: &str) -> Instant {
    loop {
        let reply = client.acquire(json!({ "name": name, "ttl_ms": TTL })).await;
        let now = Instant::now();
        if reply.status == 200 {
            return now;
        }
        if reply.status != 503 {
            reply.tells_problem(409, "busy");
        }
        sleep(Duration::from_millis(1)).await;
    }
}

over!(nobody_else_is_granted_a_name_before_the_deadline_of_its_holder: redis, etcd, zookeeper);

async fn nobody_else_is_granted_a_name_before_the_deadline_of_its_holder(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let (free, renewed, waited) = (name("free"), name("renewed"), name("waited"));

    let on_free = async {
        let sent = Instant::now();
        let held = a.acquire(wish(&free, "worker", TTL)).await.is(200).json();
        let deadline = deadline(sent, &held);
        assert!(had_at(&b, &free).await >= deadline, "granted before the deadline");
    };
    let on_renewed = async {
        a.acquire(wish(&renewed, "worker", TTL)).await.is(200);
        sleep(Duration::from_millis(TTL / 4)).await;
        let deadline = loop {
            let sent = Instant::now();
            let kept = b.renew(json!({ "name": renewed, "owner": "worker", "claim": "1" })).await;
            match kept.status {
                200 => break deadline(sent, &kept.json()),
                // Whether it was renewed is not known. The lease ends the loop, whatever the machine is busy with.
                503 => {}
                _ => {
                    kept.is(410);
                    return;
                }
            }
        };
        assert!(had_at(&a, &renewed).await >= deadline, "granted before the deadline of a renewal");
    };
    let on_waited = async {
        a.acquire(wish(&waited, "holder", 120_000)).await.is(200);
        let sent = Instant::now();
        let waits = b.acquiring(and(wish(&waited, "worker", TTL), json!({ "wait_ms": 50_000 }))).await;
        look.until(&waited, (1, 1)).await;
        a.release(json!({ "name": waited, "owner": "holder", "claim": "1" })).await.is(200);
        // From before the wait: it may be over already, and never too late.
        let deadline = deadline(sent, &waits.reply().await.is(200).json());
        assert!(had_at(&a, &waited).await >= deadline, "granted before the deadline of a grant that was waited for");
    };
    tokio::join!(on_free, on_renewed, on_waited);
}
