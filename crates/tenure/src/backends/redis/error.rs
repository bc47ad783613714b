//! What a Redis error means for the one who asked.

use redis::RedisError;

use super::url::Address;
use crate::backends::kit::tls::Distrust;
use crate::error::{Certainty, Error, ErrorKind};

/// The error of a command: what the server said, or that it did not answer.
pub(in crate::backends) fn of_command(error: &RedisError) -> Error {
    match error.code() {
        Some(code) => of_server(code, &format!("{code} {}", error.detail().unwrap_or_default())),
        // Lost on the way, there or back.
        None => Error::new(ErrorKind::Unavailable, "the connection to Redis failed")
            .because(error.clone())
            .with_certainty(Certainty::Unknown),
    }
}

/// Why TLS keeps a connection from being made, if it does.
pub(in crate::backends) fn of_tls(error: &RedisError, address: &Address) -> Option<Error> {
    let distrust = Distrust::of(&error.to_string())?;
    let explained = distrust.explained(&format!("Redis at {address}"), ["ca", "cert", "key"]);
    Some(explained.because(error.clone()))
}

/// The error of an attempt to connect: nothing was asked yet.
pub(in crate::backends) fn of_connect(error: &RedisError) -> Error {
    let auth = error.kind() == redis::ErrorKind::AuthenticationFailed;
    let of_server = error.code().map(|code| of_server(code, &error.to_string()));
    let error = match of_server {
        Some(of_server) => of_server,
        None if auth => denied("Redis refused the user or password").because(error.clone()),
        None => Error::new(ErrorKind::Unavailable, "cannot connect to Redis").because(error.clone()),
    };
    error.with_certainty(Certainty::NotApplied)
}

/// What the server said: `text` begins with the code, as in "OOM command not allowed".
pub(in crate::backends) fn of_text(text: &str) -> Error {
    // Inside a script, older servers put their own words before.
    let codes = ["TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS", "READONLY", "NOPERM", "WRONGTYPE", "MASTERDOWN"];
    let code = text.split(' ').next().filter(|code| codes.contains(code));
    let code = code.or_else(|| codes.into_iter().find(|code| text.contains(&format!("-{code} "))));
    let moving = text.contains("non local key").then_some("TRYAGAIN");
    of_server(moving.or(code).unwrap_or(""), text)
}

fn denied(message: &str) -> Error {
    Error::new(ErrorKind::Denied, message)
}

fn of_server(code: &str, text: &str) -> Error {
    // Redis gives no code to a right that is missing inside a script; and it may be missed after a first write.
    let right_in_script =
        ["executing the script can't", "ACL failure in script"].iter().any(|words| text.contains(words));
    let code = if right_in_script { "NOPERM" } else { code };
    let (kind, advice) = match code {
        "LOADING" => (ErrorKind::Unavailable, "Redis is loading its data"),
        "BUSY" => (ErrorKind::Unavailable, "Redis is busy with somebody's script"),
        "READONLY" => (ErrorKind::Unavailable, "this Redis is a replica: only its master takes locks"),
        "MASTERDOWN" => (ErrorKind::Unavailable, "this Redis is a replica without its master"),
        "CLUSTERDOWN" => (ErrorKind::Unavailable, "the Redis cluster is down"),
        "MOVED" | "ASK" | "TRYAGAIN" => (ErrorKind::Unavailable, "the Redis cluster is moving this name"),
        "NOREPLICAS" => (ErrorKind::Replicas, "Redis has fewer replicas than its min-replicas-to-write"),
        "OOM" => (ErrorKind::Store, "Redis is out of memory: raise maxmemory, or free some"),
        "MISCONF" => (ErrorKind::Store, "Redis cannot write to its disk: make room, or see its log"),
        "NOAUTH" | "WRONGPASS" => (ErrorKind::Denied, "Redis refused the user or password"),
        "NOPERM" => (ErrorKind::Denied, "the Redis user lacks a right: docs/backends/redis.md lists what it needs"),
        "WRONGTYPE" => (ErrorKind::Store, "a key of this name has another type: it is not tenure's"),
        _ => (ErrorKind::Store, "Redis refused the request"),
    };
    // What has a code was refused before it began: scripts fail before their first write, or not at all.
    let certainty = if code.is_empty() || right_in_script { Certainty::Unknown } else { Certainty::NotApplied };
    Error::new(kind, advice).because(text.to_owned()).with_certainty(certainty)
}
