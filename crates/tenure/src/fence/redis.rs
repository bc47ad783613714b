//! The fence for keys in Redis.
//!
//! ```no_run
//! # async fn sell(guard: &tenure::Guard, connection: &mut redis::aio::MultiplexedConnection)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::fence::redis::{self, Script};
//!
//! let fence = guard.fence()?;
//! redis::set(connection, "stock/42", &fence, "stock:{stock/42}", "9").await?;
//!
//! // Any other effect is a script. It sees its own keys and arguments only, and runs if the holder may.
//! let sell = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
//! let left: i64 = sell.write(connection, "stock/42", &fence, &["stock:{stock/42}"], &["-1"]).await?;
//! # Ok(()) }
//! ```
//!
//! Check and effect are one script. The fence is the hash at [`key`], beside the data: in a cluster the effect's keys
//! need the same slot, which the tag `{stock/42}` gives them. It never expires, and is as durable as the data: a
//! failover may lose both. **An eviction must not take it**: use `maxmemory-policy noeviction`, or one of `volatile-*`.

use std::sync::LazyLock;

use ::redis::aio::ConnectionLike;
use ::redis::{FromRedisValue, RedisError, ToRedisArgs, Value};

use super::rule::stale;
use super::{Failure, Fence};
use crate::machine::Shape;
use crate::token::Token;

/// Checks a fence, and runs an effect if it is accepted: the script that [`Script`] sends, with `EFFECT` in place of
/// the effect. `KEYS[1]` is the fence, `ARGV` begins with the token (20 digits: numbers in Lua are not exact, so it
/// compares text), the owner's hash, and `exclusive`, `shared`, `look exclusive` or `look shared`. It answers `{1,
/// result}`, or `{0, token}` with the token that stands against it.
pub const SCRIPT: &str = include_str!("fence.lua");

/// The key of a resource's fence: `fence:{stock/42}`.
pub fn key(resource: &str) -> String {
    format!("fence:{{{resource}}}")
}

/// An effect that only the newest holder may have.
#[derive(Debug)]
pub struct Script(::redis::Script);

impl Script {
    /// The effect is the source of a script in Lua, with `KEYS` and `ARGV` of its own. Values belong in its arguments,
    /// never in its source.
    ///
    /// An effect that fails half way leaves what it did, as in every script of Redis; the fence is raised by then.
    pub fn new(effect: &str) -> Self {
        Self(::redis::Script::new(&SCRIPT.replacen("EFFECT", effect, 1)))
    }

    /// Runs the effect if an exclusive holder may write to `resource`, and answers what it returned.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if a newer holder has been there or the fence is a reader's: the effect did not run.
    /// [`Failure::Store`] if Redis failed: unless it says so, the effect may have run.
    ///
    /// # Cancel safety
    ///
    /// The effect may or may not run. Trying again with the same fence is allowed.
    pub async fn write<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        resource: &str,
        fence: &Fence,
        keys: &[impl ToRedisArgs + Sync],
        args: &[impl ToRedisArgs + Sync],
    ) -> Result<T, Failure<RedisError>> {
        self.read(connection, resource, fence.writer()?, keys, args).await
    }

    /// Runs an effect that only reads, if a holder may read `resource`, and answers what it returned.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if a newer writer has been there: the effect did not run. [`Failure::Store`] if Redis
    /// failed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most it keeps out older writers.
    pub async fn read<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        resource: &str,
        fence: &Fence,
        keys: &[impl ToRedisArgs + Sync],
        args: &[impl ToRedisArgs + Sync],
    ) -> Result<T, Failure<RedisError>> {
        let shape = if fence.shape() == Shape::Shared { "shared" } else { "exclusive" };
        self.run(connection, resource, fence, shape, keys, args).await
    }

    async fn run<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        resource: &str,
        fence: &Fence,
        shape: &str,
        keys: &[impl ToRedisArgs + Sync],
        args: &[impl ToRedisArgs + Sync],
    ) -> Result<T, Failure<RedisError>> {
        let mut call = self.0.prepare_invoke();
        call.key(key(resource)).key(keys);
        call.arg(format!("{:020}", fence.token().get())).arg(fence.owner().to_string()).arg(shape).arg(args);
        let answer: Vec<Value> = call.invoke_async(connection).await.map_err(Failure::Store)?;
        let mut answer = answer.into_iter();
        let is_accepted = answer.next() == Some(Value::Int(1));
        let value = answer.next().unwrap_or(Value::Nil);
        if is_accepted {
            return T::from_redis_value(value).map_err(|error| Failure::Store(error.into()));
        }
        let newer = u64::from_redis_value(value).map_err(|error| Failure::Store(error.into()))?;
        Err(stale(resource, fence, Token(newer)))
    }
}

/// Sets `key` to `value` if an exclusive holder may write to `resource`.
///
/// # Errors
///
/// As [`Script::write`].
///
/// # Cancel safety
///
/// The value may or may not be set. Trying again with the same fence is allowed.
pub async fn set(
    connection: &mut (impl ConnectionLike + Send),
    resource: &str,
    fence: &Fence,
    key: &str,
    value: impl ToRedisArgs + Sync,
) -> Result<(), Failure<RedisError>> {
    static SET: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('SET', KEYS[1], ARGV[1])"));
    SET.write(connection, resource, fence, &[key], &[value]).await
}

/// Whether an operation would be refused by now, to refuse it early. It may still be refused later: only [`Script`] and
/// [`set`] check and write in one step.
///
/// # Errors
///
/// [`Failure::Refused`] if a newer holder has been there. [`Failure::Store`] if Redis failed.
///
/// # Cancel safety
///
/// Cancel safe: it only looks.
pub async fn look(
    connection: &mut (impl ConnectionLike + Send),
    resource: &str,
    fence: &Fence,
) -> Result<(), Failure<RedisError>> {
    static LOOK: LazyLock<Script> = LazyLock::new(|| Script::new(""));
    let shape = if fence.shape() == Shape::Shared { "look shared" } else { "look exclusive" };
    LOOK.run(connection, resource, fence, shape, &[] as &[&str], &[] as &[&str]).await
}
