//! The lock service: the locks of a store over HTTP, for every language, with a dashboard.
//!
//! An instance keeps no locks: they are in the store, and any number of instances over one store serve any claim. What
//! an instance has is who waits at it. `docs/service.md` is the guide; [`openapi`] describes the routes.
//!
//! ```no_run
//! # #[tokio::main] async fn main() -> Result<(), tenure_server::StartError> {
//! use tenure_server::{Options, start};
//!
//! let running = start(Options::new("redis://127.0.0.1", ([127, 0, 0, 1], 7420).into())).await?;
//! println!("http://{}", running.address());
//! running.stop();
//! running.ended().await;
//! # Ok(()) }
//! ```

mod answer;
mod api;
mod assets;
mod auth;
mod claims;
mod connection;
mod events;
mod gate;
mod health;
mod limits;
mod observe;
mod problem;
mod protocol;
mod running;
mod server;
mod service;
mod socket;
mod tls;
mod write_limit;

pub use api::openapi;
pub use auth::{Entry, Right, Secret, Tokens};
pub use limits::{
    ARRIVAL_MAX, BODY_BYTES_MAX, HEAD_BYTES_MAX, IDLE_MAX, LABEL_BYTES_MAX, Limits, MEMO_BODY_BYTES_MAX, PAGE_MAX,
    RENEWAL_BYTES_MAX, RENEWALS_MAX, STREAMS_MAX, WAIT_MAX,
};
pub use running::{Options, Running, StartError, start};
pub use tls::TlsFiles;
