//! Claims on behalf of callers: straight over the store, since no claim belongs to an instance. Any instance serves any
//! claim; what is kept here is who waits at this one, and where to tell it of its grant.

mod abandon;
mod acquire;
mod end;
mod memo;
mod refusal;
mod renew;
mod retry;
mod shared;
mod stopping;
mod wait;

pub(crate) use acquire::{AcquireRequest, Acquired};
pub(crate) use end::Which;
pub(crate) use memo::write_id;
pub(crate) use renew::{Kept, Renewal};
pub(crate) use shared::Claims;
