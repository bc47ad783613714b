//! Fencing at the resource: the code that refuses a stale holder.
//!
//! A lease cannot stop a holder that was paused past its deadline; the resource can, by the token. **Check and effect
//! are one step**, so the check is made where the effect is:
//!
//! | the resource is | use | feature |
//! |---|---|---|
//! | in this process | [`Gate`] | |
//! | in PostgreSQL | `fence::postgres`, or the statements of [`sql`] | `fence-postgres` |
//! | in SQLite | `fence::sqlite`, or the statements of [`sql`] | `fence-sqlite` |
//! | in Redis | `fence::redis` | `fence-redis` |
//! | behind HTTP | `fence::http`, which hands a [`Fence`] to one of the others | `fence-http` |
//!
//! `docs/fencing.md` says how to build one for another store, and what to do where there can be none. All of them count
//! what they refuse as stale in `tenure_fence_refused_total`, by the first segment of the resource's name (`stock` of
//! `stock/42`; the first 64, then `other`).

mod carried;
mod gate;
#[cfg(feature = "fence-http")]
pub mod http;
#[cfg(feature = "fence-postgres")]
pub mod postgres;
#[cfg(feature = "fence-redis")]
pub mod redis;
mod rule;
pub mod sql;
#[cfg(feature = "fence-sqlite")]
pub mod sqlite;

pub use carried::{Fence, OWNER_HEADER, OwnerHash, TOKEN_HEADER};
pub use gate::Gate;
pub use rule::{Failure, Refused};
