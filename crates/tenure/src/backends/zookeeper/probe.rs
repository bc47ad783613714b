//! What servers tell of themselves: the limits of sessions, and the four-letter words.
//!
//! The client library does not tell the limits. A handshake does: whoever asks for too short a session is given the
//! shortest, and whoever asks for too long a one the longest.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::error::unavailable;
use super::limits::{Heard, Host, Told};
use super::tls::{Stream, Tls, dial, greet};
use super::url::Settings;
use crate::backends::kit::tls::{self, Distrust, first_bytes, speaks_tls};
use crate::error::{Error, Result};

/// How long servers have to answer, at first and when they are asked again.
pub(super) const PATIENCE: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(5)];
/// One that hangs does not keep a client from beginning: it is asked again before anything counts that goes through it.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// How long a server may take to answer a greeting: the first of TLS takes long where Java has just been started.
const GREETING_MAX: Duration = Duration::from_secs(3);
/// The longest answer to a four-letter word that is read.
const ANSWER_MAX: usize = 256 * 1024;
/// The most addresses of one name that are asked.
const ADDRESSES_MAX: usize = 64;
const CLOSE_SESSION: i32 = -11;
const PASSWORD_BYTES: usize = 16;

/// What a server that has no quorum answers to most words.
const NOT_SERVING: &str = "not currently serving requests";

/// What is asked of a server: what it gives to those who ask for the one and the other timeout. What it gives to one
/// who asks for something in between follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
    /// Whether it is asked for its tick as well.
    pub(super) tick: bool,
}

impl Question {
    /// The shortest and the longest timeout that it gives.
    const LIMITS: Self = Self { shortest: Duration::from_millis(1), longest: Duration::MAX, tick: true };
}

/// What one server, or all that a name stands for, did when it was asked.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) heard: Option<Heard>,
    /// One gave no answer in time, also if it took the connection.
    pub(super) hangs: bool,
    /// Why one took the connection and gave no session, unless it says that it serves nobody.
    pub(super) closed: Option<String>,
    /// Why one could not be connected to.
    pub(super) away: Option<String>,
}

impl Reply {
    fn and(self, other: Self) -> Self {
        let heard = match (self.heard, other.heard) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        Self {
            heard,
            hangs: self.hangs || other.hangs,
            closed: self.closed.or(other.closed),
            away: self.away.or(other.away),
        }
    }

    /// Why nothing was heard.
    fn silence(self) -> String {
        self.closed.or(self.away).unwrap_or_else(|| "no answer".to_owned())
    }

    /// Whether a session that is answered writes may be at this server without it having said so. One that hangs
    /// answers nobody; but one that turns away others may go on serving those it has.
    pub(super) fn leaves_doubt(&self, writes_are_answered: bool) -> bool {
        self.closed.is_some() || (self.hangs && !writes_are_answered)
    }
}

/// What servers said, and why others did not.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) told: Vec<(Host, Heard)>,
    pub(super) silent: Vec<(Host, String)>,
}

/// Asks all servers at once, until all have answered or the time is up. Once one has, the others are given `grace`.
///
/// # Cancel safety
///
/// Cancel safe: the sessions that were asked for end by themselves.
pub(super) async fn all(settings: &Settings, patience: Duration, grace: Duration) -> Asked {
    let mut asked = Asked::default();
    let question = Question::LIMITS;
    let mut waiting: FuturesUnordered<_> =
        settings.hosts.iter().map(|host| async move { (host, of(settings, host, question, patience).await) }).collect();
    loop {
        let left = if asked.told.is_empty() { patience * 2 } else { grace.min(patience) };
        match timeout(left, waiting.next()).await {
            Ok(Some((host, Reply { heard: Some(heard), .. }))) => asked.told.push((host.clone(), heard)),
            Ok(Some((host, reply))) => asked.silent.push((host.clone(), reply.silence())),
            Ok(None) | Err(_) => return asked,
        }
    }
}

/// Asks the servers for the first time: patiently, and more so the second time.
///
/// # Cancel safety
///
/// Cancel safe: the sessions that were asked for end by themselves.
pub(super) async fn first(settings: &Settings) -> Result<Told> {
    let asked = all(settings, PATIENCE[0], GRACE).await;
    if let Some(told) = Told::new(asked.told, settings.tick) {
        return Ok(told);
    }
    let asked = tokio::select! {
        Some(misfit) = misfit(settings, &asked.silent) => return Err(misfit),
        asked = all(settings, PATIENCE[1], GRACE) => asked,
    };
    if let Some(told) = Told::new(asked.told, settings.tick) {
        return Ok(told);
    }
    // A server that was too busy for the first question may have answered the second.
    if let Some(misfit) = misfit(settings, &asked.silent).await {
        return Err(misfit);
    }
    let silent: Vec<String> = asked.silent.iter().map(|(host, told)| format!("{}: {told}", shown(host))).collect();
    Err(unavailable("no server of the ensemble answers, or they have no quorum").because(silent.join(", ")))
}

/// What is wrong with the URL or the certificates, if that is why most servers gave no session: the others alone are no
/// quorum, and waiting for them does not help.
async fn misfit(settings: &Settings, silent: &[(Host, String)]) -> Option<Error> {
    let misfits = join_all(silent.iter().map(|(host, told)| misfit_of(settings, host, told))).await;
    let misfits: Vec<Error> = misfits.into_iter().flatten().collect();
    let most = misfits.len() * 2 > settings.hosts.len();
    misfits.into_iter().next().filter(|_| most)
}

fn shown((host, port): &Host) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// What is wrong with the URL or the certificates, if that is why a server gave no session.
async fn misfit_of(settings: &Settings, host: &Host, told: &str) -> Option<Error> {
    let at = (host.0.as_str(), host.1);
    let server = format!("ZooKeeper at {}", shown(host));
    if let Some(distrust) = Distrust::of(told) {
        return Some(distrust.explained(&server, ["ca", "cert", "key"]).because(told.to_owned()));
    }
    if settings.tls.is_some() {
        // What it tells, that it does not tell, or that it serves nobody at the moment.
        let answer = first_bytes(at, b"srvr", GREETING_MAX).await;
        let advice =
            "speaks without TLS there: leave tls=true out, and ca=, cert= and key=; or name its secureClientPort";
        matches!(answer.as_ref(), Some(b"Zook" | b"srvr" | b"This")).then(|| tls::misfit(&server, advice))
    } else {
        let advice = "speaks TLS there: add tls=true&ca=FILE, or name its clientPort";
        speaks_tls(at, GREETING_MAX).await.then(|| tls::misfit(&server, advice))
    }
}

/// What a host does when it is asked: all servers that its name stands for, since a session may come to each of them.
///
/// # Cancel safety
///
/// Cancel safe: the sessions that were asked for end by themselves.
pub(super) async fn of(settings: &Settings, host: &Host, question: Question, patience: Duration) -> Reply {
    let addresses = match timeout(patience, lookup_host((host.0.as_str(), host.1))).await {
        Ok(Ok(addresses)) => addresses.take(ADDRESSES_MAX),
        // Names of servers that are down may be taken back: nobody comes to such a one either.
        Ok(Err(error)) => return Reply { away: Some(error.to_string()), ..Reply::default() },
        Err(_) => return Reply { hangs: true, ..Reply::default() },
    };
    let replies = join_all(addresses.map(|address| at(settings, host, address, question, patience))).await;
    let nowhere = || Reply { away: Some("the name stands for no address".to_owned()), ..Reply::default() };
    replies.into_iter().reduce(Reply::and).unwrap_or_else(nowhere)
}

/// What the server at one address does.
async fn at(settings: &Settings, (host, _): &Host, at: SocketAddr, question: Question, patience: Duration) -> Reply {
    let tls = settings.tls.as_ref();
    let gives = |asked: Duration| async move {
        let asked = i32::try_from(asked.as_millis()).unwrap_or(i32::MAX);
        let stream = TcpStream::connect(at).await.map_err(Silence::Away)?;
        negotiated(tls, host, stream, asked).await.map_err(Silence::Closed)
    };
    let range = async {
        if question.shortest == question.longest {
            return gives(question.shortest).await.map(|given| (given, given));
        }
        tokio::try_join!(gives(question.shortest), gives(question.longest))
    };
    // Some never answer to words: the limits are known without.
    let tick = async { if question.tick { told_tick(tls, host, at, patience).await } else { None } };
    let (range, tick) = tokio::join!(timeout(patience, range), tick);
    match range {
        Ok(Ok((min, max))) => Reply { heard: Some(Heard { min, max, tick }), ..Reply::default() },
        Ok(Err(Silence::Away(error))) => Reply { away: Some(error.to_string()), ..Reply::default() },
        Ok(Err(Silence::Closed(error))) => {
            let why = word_at(tls, host, at, "srvr", patience / 2).await.unwrap_or_default();
            let error = error.to_string();
            match why.contains(NOT_SERVING) {
                true => Reply { away: Some("the server has no quorum".to_owned()), ..Reply::default() },
                false => Reply { closed: Some(error), ..Reply::default() },
            }
        }
        Err(_) => Reply { hangs: true, ..Reply::default() },
    }
}

/// Why a server gave no session.
enum Silence {
    /// It cannot be connected to.
    Away(std::io::Error),
    /// It took the connection.
    Closed(std::io::Error),
}

/// The timeout that a session is given which asks for so many milliseconds. The session is closed again.
async fn negotiated(tls: Option<&Tls>, host: &str, stream: TcpStream, asked: i32) -> std::io::Result<Duration> {
    let mut stream = greet(tls, host, stream).await?;
    let mut request = Vec::with_capacity(49);
    request.extend(45_i32.to_be_bytes());
    request.extend(0_i32.to_be_bytes()); // the version of the protocol
    request.extend(0_i64.to_be_bytes()); // the last change seen
    request.extend(asked.to_be_bytes());
    request.extend(0_i64.to_be_bytes()); // a new session
    request.extend(16_i32.to_be_bytes());
    request.extend([0; PASSWORD_BYTES]);
    request.push(0); // not one that only reads
    // A server that has hung up may have said why: that is read first.
    let sent = async {
        stream.write_all(&request).await?;
        stream.flush().await
    };
    let sent = sent.await;
    // Length, version, timeout, session, password and whether it only reads; old servers leave the last out.
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).await?;
    sent?;
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
async fn told_tick(tls: Option<&Tls>, host: &str, at: SocketAddr, patience: Duration) -> Option<Duration> {
    let told = word_at(tls, host, at, "conf", patience).await.ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("tickTime="))?;
    line.trim().parse().ok().map(Duration::from_millis).filter(|tick| !tick.is_zero())
}

/// The answer to a four-letter word.
///
/// # Cancel safety
///
/// Cancel safe: the connection is closed.
pub(super) async fn word(
    tls: Option<&Tls>,
    host: &str,
    port: u16,
    word: &str,
    patience: Duration,
) -> std::io::Result<String> {
    let asked = async { answer(dial(tls, host, port).await?, word).await };
    timeout(patience, asked).await.unwrap_or_else(|_| Err(std::io::Error::other("no answer")))
}

/// [`word`], of the server at one address.
async fn word_at(
    tls: Option<&Tls>,
    host: &str,
    at: SocketAddr,
    word: &str,
    patience: Duration,
) -> std::io::Result<String> {
    let asked = async { answer(greet(tls, host, TcpStream::connect(at).await?).await?, word).await };
    timeout(patience, asked).await.unwrap_or_else(|_| Err(std::io::Error::other("no answer")))
}

async fn answer(mut stream: Box<dyn Stream>, word: &str) -> std::io::Result<String> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(seconds: u64) -> Reply {
        let timeout = Duration::from_secs(seconds);
        Reply { heard: Some(Heard { min: timeout, max: timeout, tick: None }), ..Reply::default() }
    }

    #[test]
    fn what_a_silent_server_may_be_doing_is_not_taken_for_an_answer() {
        let away = || Reply { away: Some("refused".to_owned()), ..Reply::default() };
        let hangs = || Reply { hangs: true, ..Reply::default() };
        let closed = || Reply { closed: Some("too many connections".to_owned()), ..Reply::default() };
        for writes_are_answered in [false, true] {
            assert!(!heard(9).leaves_doubt(writes_are_answered) && !away().leaves_doubt(writes_are_answered));
            assert!(closed().leaves_doubt(writes_are_answered));
            assert_eq!(hangs().leaves_doubt(writes_are_answered), !writes_are_answered);
            assert!(heard(9).and(closed()).leaves_doubt(writes_are_answered), "one of two servers with this name");
            assert!(!heard(9).and(away()).leaves_doubt(writes_are_answered));
        }
        assert!(hangs().and(heard(9)).leaves_doubt(false));
        let both = heard(9).and(heard(7)).heard.unwrap();
        assert_eq!((both.min, both.max), (Duration::from_secs(9), Duration::from_secs(7)), "they do not agree");
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods)]
    async fn servers_that_refuse_hang_and_close_are_told_apart() {
        let listen = || tokio::net::TcpListener::bind(("127.0.0.1", 0));
        let (hung, closing, gone) = (listen().await.unwrap(), listen().await.unwrap(), listen().await.unwrap());
        let port = |listener: &tokio::net::TcpListener| listener.local_addr().unwrap().port();
        let ports = [port(&hung), port(&closing), port(&gone)];
        drop(gone);
        tokio::spawn(async move { while closing.accept().await.is_ok() {} });
        let settings = Settings::parse("zookeeper://127.0.0.1/x").unwrap();
        let same = Duration::from_secs(4);
        for question in [Question::LIMITS, Question { shortest: same, longest: same, tick: false }] {
            let asked = ports.map(|port| {
                let (settings, host) = (settings.clone(), ("127.0.0.1".to_owned(), port));
                async move { of(&settings, &host, question, Duration::from_secs(2)).await }
            });
            let replies = join_all(asked).await;
            let seen: Vec<_> = replies.iter().map(|r| (r.hangs, r.closed.is_some(), r.away.is_some())).collect();
            assert_eq!(seen, [(true, false, false), (false, true, false), (false, false, true)]);
        }
    }
}
