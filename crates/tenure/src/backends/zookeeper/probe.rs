//! What servers tell of themselves: the limits of sessions, and the four-letter words.
//!
//! The client library does not tell the limits. A handshake does: whoever asks for too short a session is given the
//! shortest, and whoever asks for too long a one the longest.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error::unavailable;
use super::url::Settings;
use crate::error::Result;

/// How long each server has to answer, at first and when it is asked again.
const PATIENCE: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(5)];
/// The longest answer to a four-letter word that is read.
const ANSWER_MAX: usize = 256 * 1024;
const CLOSE_SESSION: i32 = -11;
const PASSWORD_BYTES: usize = 16;

/// What sessions may be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) min: Duration,
    pub(super) max: Duration,
    pub(super) tick: Duration,
}

/// Asks the servers, one after the other.
pub(super) async fn limits(settings: &Settings) -> Result<Limits> {
    let mut why = Vec::new();
    let first = usize::from(rand::random::<u8>()) % settings.hosts.len().max(1);
    for patience in PATIENCE {
        why.clear();
        for (host, port) in settings.hosts.iter().cycle().skip(first).take(settings.hosts.len()) {
            let asked = async { tokio::try_join!(negotiated(host, *port, 1), negotiated(host, *port, i32::MAX)) };
            match timeout(patience, asked).await {
                Ok(Ok((min, max))) => {
                    let tick = match settings.tick {
                        Some(tick) => tick,
                        None => told_tick(host, *port, patience).await.unwrap_or(min / 2),
                    };
                    return Ok(Limits { min, max, tick: tick.max(Duration::from_millis(1)) });
                }
                Ok(Err(error)) => why.push(format!("{host}:{port}: {error}")),
                Err(_) => why.push(format!("{host}:{port}: no answer")),
            }
        }
    }
    Err(unavailable("no server of the ensemble answers, or they have no quorum").because(why.join(", ")))
}

/// The timeout that a session is given which asks for so many milliseconds. The session is closed again.
async fn negotiated(host: &str, port: u16, asked: i32) -> std::io::Result<Duration> {
    let mut stream = TcpStream::connect((host, port)).await?;
    let mut request = Vec::with_capacity(49);
    request.extend(45_i32.to_be_bytes());
    request.extend(0_i32.to_be_bytes()); // the version of the protocol
    request.extend(0_i64.to_be_bytes()); // the last change seen
    request.extend(asked.to_be_bytes());
    request.extend(0_i64.to_be_bytes()); // a new session
    request.extend(16_i32.to_be_bytes());
    request.extend([0; PASSWORD_BYTES]);
    request.push(0); // not one that only reads
    stream.write_all(&request).await?;
    // Length, version, timeout, session, password and whether it only reads; old servers leave the last out.
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).await?;
    let number = |at: usize| i32::from_be_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]]);
    let millis = u64::try_from(number(8)).unwrap_or(0);
    if millis == 0 {
        return Err(std::io::Error::other("the server gives no session"));
    }
    let mut close = Vec::with_capacity(12);
    close.extend(8_i32.to_be_bytes());
    close.extend(1_i32.to_be_bytes());
    close.extend(CLOSE_SESSION.to_be_bytes());
    // If this does not arrive, the session ends by itself.
    let _ = stream.write_all(&close).await;
    let _ = stream.shutdown().await;
    Ok(Duration::from_millis(millis))
}

/// The tickTime, of a server that tells its settings.
async fn told_tick(host: &str, port: u16, patience: Duration) -> Option<Duration> {
    let told = word(host, port, "conf", patience).await.ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("tickTime="))?;
    line.trim().parse().ok().map(Duration::from_millis).filter(|tick| !tick.is_zero())
}

/// The answer to a four-letter word.
pub(super) async fn word(host: &str, port: u16, word: &str, patience: Duration) -> std::io::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        let limit = u64::try_from(ANSWER_MAX).unwrap_or(u64::MAX);
        stream.take(limit).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match timeout(patience, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(std::io::Error::other("no answer")),
    }
}
