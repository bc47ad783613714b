//! One server, and what can go wrong with it.

mod access;
mod connecting;
mod garbage;
mod network;
mod refusals;
mod restart;
