//! Waiting for replicas: a write and WAIT in one pipeline, on a connection kept for it.
//!
//! WAIT looks at its own connection's last write only, and says nothing of which server it speaks for. So the write is
//! a renewal of the claim itself, or the memo once more, and counts only if this server has it: after a failover, or a
//! restart that forgot everything, it does not. Those who wait at the same time share one WAIT.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::error::of_command;
use super::lane::Work;
use super::memo;
use super::node::{Node, unavailable};
use super::place::CONNECT_MAX;
use super::wire;
use crate::backend::{Renewed, Standing};
use crate::error::{Error, Result};

/// How long replicas may take to say that they have it.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How much longer than that an answer may take.
const ANSWER_MAX: Duration = Duration::from_millis(500);

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
    /// The renewal of the claim, or the memo once more.
    write: Work,
    reply: oneshot::Sender<Result<u64>>,
}

impl Sync {
    pub(super) fn new(node: &Arc<Node>) -> Self {
        Self { node: node.clone(), state: Arc::default() }
    }

    /// Renews a claim or writes a memo once more, and answers how many replicas have it; waits a moment for
    /// `replicas` of them.
    pub(super) fn wait_for(&self, replicas: u64, write: Work) -> impl Future<Output = Result<u64>> + Send + 'static {
        let (reply, answer) = oneshot::channel();
        let mut state = lock(&self.state);
        state.waiting.push(Waiting { replicas, write, reply });
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
        let outcome = ask(&node, connection, &waiting).await;
        let answers = match outcome {
            Ok((answers, connection)) => {
                let mut state = lock(&state);
                state.connection = Some(connection).filter(|_| state.left == left);
                Ok(answers)
            }
            Err(error) => Err(error),
        };
        for (index, one) in waiting.into_iter().enumerate() {
            let answer = match &answers {
                Ok(answers) => answers.get(index).copied().flatten().ok_or_else(elsewhere),
                Err(error) => Err(error.again()),
            };
            drop(one.reply.send(answer));
        }
    }
}

fn elsewhere() -> Error {
    unavailable("the server whose replicas were asked does not have it: another one is the master by now")
}

/// For each claim or memo that this server has, how many replicas have it.
async fn ask(
    node: &Node,
    connection: Option<MultiplexedConnection>,
    waiting: &[Waiting],
) -> Result<(Vec<Option<u64>>, MultiplexedConnection)> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => timeout(CONNECT_MAX, node.place.open())
            .await
            .unwrap_or_else(|_| Err(unavailable("no answer from Redis")))?,
    };
    let replicas = waiting.iter().map(|one| one.replicas).max().unwrap_or(0);
    let wait_ms = u64::try_from(WAIT_MAX.as_millis()).unwrap_or(u64::MAX);
    // Told in full if the server turns out not to know the script.
    for in_full in [false, true] {
        let mut pipeline = redis::Pipeline::new();
        for one in waiting {
            pipeline.add_command(node.command_for(&one.write, in_full));
        }
        pipeline.cmd("WAIT").arg(replicas).arg(wait_ms);
        let sent = connection.send_packed_commands(&pipeline, 0, waiting.len() + 1);
        let values = match timeout(WAIT_MAX + ANSWER_MAX, sent).await {
            Ok(answer) => answer.map_err(|error| of_command(&error))?,
            Err(_) => return Err(unavailable("no answer from Redis")),
        };
        let mut values: Vec<redis::RedisResult<Value>> = values.into_iter().map(Value::extract_error).collect();
        let unknown = values.iter().any(|value| matches!(value, Err(error) if error.code() == Some("NOSCRIPT")));
        if unknown && !in_full {
            continue;
        }
        let acknowledged = values.pop().unwrap_or(Ok(Value::Nil)).map_err(|error| of_command(&error))?;
        let Some(acknowledged) = wire::number(&acknowledged) else { break };
        let has = |(one, value): (&Waiting, &redis::RedisResult<Value>)| match (&one.write, value) {
            (Work::Memo(_), Ok(value)) => memo::is_done(value),
            (_, Ok(value)) => holds(value),
            (_, Err(_)) => false,
        };
        let answers = waiting.iter().zip(&values).map(|pair| has(pair).then_some(acknowledged)).collect();
        return Ok((answers, connection));
    }
    Err(unavailable("WAIT was not answered"))
}

/// Whether a renewal was answered for a claim that holds: after the server's time in a batch, by itself otherwise.
fn holds(value: &Value) -> bool {
    let own = match value {
        Value::Array(items) if matches!(items.first(), Some(Value::Int(_))) => items.get(1),
        value => Some(value),
    };
    let renewed = own.and_then(|own| wire::renewed(own).ok());
    matches!(renewed, Some(Renewed::Stands(Standing { state: Ok(_), .. })))
}
