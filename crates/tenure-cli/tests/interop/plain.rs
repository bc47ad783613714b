//! The clients that keep a lock as a string, and `layout=plain`.

use serde_json::json;

use crate::cases::{every_case, is_foreign_in};
use crate::clients::Client;
use crate::scene::{Scene, with};

macro_rules! client {
    ($module:ident, $client:expr) => {
        mod $module {
            use super::*;

            every_case!($client);

            #[test]
            #[ignore = "interop: scripts/interop installs the client and runs it"]
            fn its_lock_is_foreign_to_the_redisson_layout() {
                is_foreign_in($client, "redisson");
            }
        }
    };
}

client!(redis_py, Client::RedisPy);
client!(node_redlock, Client::NodeRedlock);
client!(redsync, Client::Redsync);
client!(redislock, Client::Redislock);

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn a_redis_py_lock_that_never_ends_keeps_tenure_out() {
    with(Client::RedisPy, |scene: &Scene| {
        let mut driver = scene.driver();
        driver.send(&json!({"op": "acquire", "key": "x", "wait_ms": 0}));
        assert!(driver.acquired(crate::cases::LONG));
        scene.tenure("acquire x --no-wait --owner a").exits(75);
        assert!(scene.foreign_holder("plain", "x")["expires_in_ms"].is_null());
        driver.must("release");
        scene.tenure("acquire x --no-wait --owner a").exits(0);
    });
}
