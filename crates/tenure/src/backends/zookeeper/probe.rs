//! What servers tell of themselves: the limits of sessions, and the four-letter words.
//!
//! The client library does not tell the limits. A handshake does: whoever asks for too short a session is given the
//! shortest, and whoever asks for too long a one the longest.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::error::unavailable;
use super::limits::{Host, Limits, Told};
use super::tls::{Tls, dial};
use super::url::Settings;
use crate::error::Result;

/// How long servers have to answer, at first and when they are asked again.
pub(super) const PATIENCE: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(5)];
/// One that hangs does not keep a client from beginning: it is asked again before anything counts that goes through it.
const GRACE: Duration = Duration::from_millis(250);
/// The longest answer to a four-letter word that is read.
const ANSWER_MAX: usize = 256 * 1024;
const CLOSE_SESSION: i32 = -11;
const PASSWORD_BYTES: usize = 16;

/// The tickTime of most servers.
const TICK_USUAL: Duration = Duration::from_secs(2);

/// What servers said, and why others did not.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) told: Vec<(Host, Limits)>,
    pub(super) silent: Vec<String>,
}

/// Asks all servers at once, until all have answered or the time is up. Once one has, the others are given `grace`.
pub(super) async fn all(settings: &Settings, patience: Duration, grace: Duration) -> Asked {
    let mut asked = Asked::default();
    let mut waiting: FuturesUnordered<_> =
        settings.hosts.iter().map(|host| async move { (host, of(settings, host, patience).await) }).collect();
    loop {
        let left = if asked.told.is_empty() { patience } else { grace.min(patience) };
        match timeout(left, waiting.next()).await {
            Ok(Some((host, Ok(limits)))) => asked.told.push((host.clone(), limits)),
            Ok(Some(((host, port), Err(error)))) => asked.silent.push(format!("{host}:{port}: {error}")),
            Ok(None) | Err(_) => return asked,
        }
    }
}

/// Asks the servers for the first time: patiently, and more so the second time.
pub(super) async fn first(settings: &Settings) -> Result<Told> {
    let mut silent = Vec::new();
    for patience in PATIENCE {
        let asked = all(settings, patience, GRACE).await;
        if let Some(told) = Told::new(asked.told) {
            return Ok(told);
        }
        silent = asked.silent;
    }
    Err(unavailable("no server of the ensemble answers, or they have no quorum").because(silent.join(", ")))
}

/// What one server says.
async fn of(settings: &Settings, (host, port): &Host, patience: Duration) -> std::io::Result<Limits> {
    let tls = settings.tls.as_ref();
    let asked = async { tokio::try_join!(negotiated(tls, host, *port, 1), negotiated(tls, host, *port, i32::MAX)) };
    let (min, max) = timeout(patience, asked).await.unwrap_or_else(|_| Err(std::io::Error::other("no answer")))?;
    let told = match settings.tick {
        Some(tick) => Some(tick),
        None => told_tick(tls, host, *port, patience).await,
    };
    Ok(Limits { min, max, tick: tick_of(told, min) })
}

/// The tickTime, if it may not have been told. The shortest timeout is two ticks unless it was set otherwise, and nobody
/// tells whether it was: so it is no less than what most servers have.
fn tick_of(told: Option<Duration>, min: Duration) -> Duration {
    told.unwrap_or_else(|| (min / 2).max(TICK_USUAL)).max(Duration::from_millis(1))
}

/// The timeout that a session is given which asks for so many milliseconds. The session is closed again.
async fn negotiated(tls: Option<&Tls>, host: &str, port: u16, asked: i32) -> std::io::Result<Duration> {
    let mut stream = dial(tls, host, port).await?;
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
    stream.flush().await?;
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
async fn told_tick(tls: Option<&Tls>, host: &str, port: u16, patience: Duration) -> Option<Duration> {
    let told = word(tls, host, port, "conf", patience).await.ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("tickTime="))?;
    line.trim().parse().ok().map(Duration::from_millis).filter(|tick| !tick.is_zero())
}

/// The answer to a four-letter word.
pub(super) async fn word(
    tls: Option<&Tls>,
    host: &str,
    port: u16,
    word: &str,
    patience: Duration,
) -> std::io::Result<String> {
    let asked = async {
        let mut stream = dial(tls, host, port).await?;
        stream.write_all(word.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        let limit = u64::try_from(ANSWER_MAX).unwrap_or(u64::MAX);
        match stream.take(limit).read_to_end(&mut answer).await {
            // Servers hang up without the farewell that TLS asks for.
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match timeout(patience, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(std::io::Error::other("no answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_is_not_told_is_not_taken_for_a_short_one() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert_eq!(tick_of(Some(ms(100)), ms(200)), ms(100));
        assert_eq!(tick_of(None, ms(200)), s(2), "minSessionTimeout was set below two ticks, maybe");
        assert_eq!(tick_of(None, s(4)), s(2));
        assert_eq!(tick_of(None, s(10)), s(5));
    }
}
