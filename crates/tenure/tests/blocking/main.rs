//! The API without async: all of it over several stores, on which threads it may be called, and what dropping does.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod calls;
mod drops;
mod store;
mod threads;
