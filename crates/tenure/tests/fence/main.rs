//! Fences at resources: one rule in every store, and holders that were paused past their ttl.
#![cfg(all(
    feature = "fence-http",
    feature = "fence-postgres",
    feature = "fence-redis",
    feature = "fence-sqlite",
    target_os = "linux"
))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod counted;
mod early;
mod paused;
mod process;
mod resource;
mod rule;
