//! Waiting for replicas: a write and WAIT in one pipeline, on a connection kept for it.
//!
//! WAIT looks at its own connection's last write only. Replication is one stream, so replicas that have the write
//! also have every grant and renewal that was answered before it. Those who wait at the same time share one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::error::of_command;
use super::node::{Node, unavailable};
use super::place::CONNECT_MAX;
use super::wire;
use crate::error::{Error, Result};

/// How long replicas may take to say that they have it.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How long the written key lives.
const KEY_LIVES: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Sync {
    node: Arc<Node>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// How often a connection was left: one that was in use then is not kept.
    left: u64,
    waiting: Vec<Waiting>,
    running: bool,
}

struct Waiting {
    replicas: u64,
    key: String,
    reply: oneshot::Sender<Result<u64>>,
}

impl Sync {
    pub(super) fn new(node: &Arc<Node>) -> Self {
        Self { node: node.clone(), state: Arc::default() }
    }

    /// How many replicas have everything that was answered so far; waits a moment for `replicas` of them. `key` is
    /// any key of this server that may be written to.
    pub(super) fn wait_for(&self, replicas: u64, key: String) -> impl Future<Output = Result<u64>> + Send + 'static {
        let (reply, answer) = oneshot::channel();
        let mut state = lock(&self.state);
        state.waiting.push(Waiting { replicas, key, reply });
        if !state.running {
            state.running = true;
            self.node.runtime().spawn(run(self.node.clone(), self.state.clone()));
        }
        drop(state);
        async move { answer.await.unwrap_or_else(|_| Err(unavailable("the client of Redis was closed"))) }
    }

    pub(super) fn leave_connection(&self) {
        let mut state = lock(&self.state);
        state.connection = None;
        state.left += 1;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves those who wait, all at once, until nobody does.
async fn run(node: Arc<Node>, state: Arc<Mutex<State>>) {
    loop {
        let (waiting, connection, left) = {
            let mut state = lock(&state);
            if state.waiting.is_empty() {
                state.running = false;
                return;
            }
            (std::mem::take(&mut state.waiting), state.connection.take(), state.left)
        };
        let replicas = waiting.iter().map(|one| one.replicas).max().unwrap_or(0);
        let key = waiting.first().map(|one| one.key.clone()).unwrap_or_default();
        let outcome = ask(&node, connection, replicas, &key).await;
        let answer = match outcome {
            Ok((acknowledged, connection)) => {
                let mut state = lock(&state);
                state.connection = Some(connection).filter(|_| state.left == left);
                Ok(acknowledged)
            }
            Err(error) => Err(error),
        };
        for one in waiting {
            drop(one.reply.send(answer.as_ref().copied().map_err(Error::again)));
        }
    }
}

async fn ask(
    node: &Node,
    connection: Option<MultiplexedConnection>,
    replicas: u64,
    key: &str,
) -> Result<(u64, MultiplexedConnection)> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => timeout(CONNECT_MAX, node.place.open())
            .await
            .unwrap_or_else(|_| Err(unavailable("no answer from Redis")))?,
    };
    let mut pipeline = redis::Pipeline::new();
    pipeline.cmd("SET").arg(key).arg(1).arg("PX").arg(KEY_LIVES.as_millis() as u64);
    pipeline.cmd("WAIT").arg(replicas).arg(WAIT_MAX.as_millis() as u64);
    let asked = timeout(WAIT_MAX + CONNECT_MAX, connection.send_packed_commands(&pipeline, 0, 2)).await;
    let values = match asked {
        Ok(answer) => answer.map_err(|error| of_command(&error))?,
        Err(_) => return Err(unavailable("no answer from Redis")),
    };
    let mut acknowledged = None;
    for value in values {
        let value = Value::extract_error(value).map_err(|error| of_command(&error))?;
        acknowledged = wire::number(&value);
    }
    acknowledged.map(|count| (count, connection)).ok_or_else(|| unavailable("WAIT was not answered"))
}
