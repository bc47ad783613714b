//! How a connection is made: to which host, with TLS or without, and why not.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};

use super::error::{has_no_tls, is_answer, is_handshake, is_turned_away, of_connecting, unavailable};
use super::link::Ear;
use super::sslmode::Mode;
use super::tls::Connector;
use super::url::Target;
use crate::backends::kit::tls::{Distrust, GREETING_MAX, first_bytes};
use crate::error::{Error, ErrorKind, Result, with_causes};

/// How long connecting may take, all hosts together.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long one host may be silent before the next is tried as well.
const NEXT_HOST_AFTER: Duration = Duration::from_millis(250);
/// Where PostgreSQL listens if a URL does not say.
const PORT: u16 = 5432;
/// Asks a server whether it has TLS; it answers with one letter.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Connects to the first of the hosts that takes writes. One that does not answer holds the next one up for a moment
/// only; and while it does not, the others are asked again: one of them may be about to take its place.
///
/// # Cancel safety
///
/// Cancel safe: a connection that is not finished is closed.
pub(super) async fn connect(target: &Target, ear: Option<Ear>, ended: &Arc<Notify>) -> Result<(usize, Client)> {
    let connecting = async {
        let ask = |at: usize, host, after: Duration| {
            let connected = connect_to(host, target, at, ear.clone(), ended);
            async move {
                if !after.is_zero() {
                    let _ = timeout(after, std::future::pending::<()>()).await;
                }
                (at, after.is_zero(), connected.await)
            }
        };
        let mut hosts = target.hosts.iter().enumerate();
        let (mut under_way, mut failure, mut silent) = (FuturesUnordered::new(), None, target.hosts.len());
        loop {
            if let Some((at, host)) = hosts.next() {
                under_way.push(ask(at, host, Duration::ZERO));
            }
            let limit = if hosts.len() > 0 { NEXT_HOST_AFTER } else { CONNECT_MAX };
            let Ok(Some((at, is_first, connected))) = timeout(limit, under_way.next()).await else { continue };
            silent -= usize::from(is_first);
            match connected {
                Ok(client) => return Ok((at, client)),
                // That a server answered, and what, says more than that another did not.
                Err(error) if failure.is_none() || error.is_answer() => failure = Some((at, error)),
                Err(_) => {}
            }
            if silent == 0 {
                return Err(failure);
            }
            under_way.push(ask(at, &target.hosts[at], NEXT_HOST_AFTER));
        }
    };
    let nobody = || unavailable(&format!("no answer from PostgreSQL within {CONNECT_MAX:?} of connecting"));
    match timeout(CONNECT_MAX, connecting).await {
        Ok(Ok(connected)) => Ok(connected),
        Ok(Err(Some((at, failure)))) => Err(failure.explained(target, &target.hosts[at]).await),
        Ok(Err(None)) | Err(_) => Err(nobody()),
    }
}

/// Why a host was not connected to.
enum Failed {
    /// It said so, or the way to it is cut.
    For(tokio_postgres::Error),
    /// As many connections as there may be wait for it to answer.
    Full,
}

impl Failed {
    fn is_answer(&self) -> bool {
        matches!(self, Self::For(error) if is_answer(error))
    }

    async fn explained(self, target: &Target, host: &Config) -> Error {
        let error = match self {
            Self::For(error) => error,
            Self::Full => return unavailable("PostgreSQL takes connections and does not answer on them"),
        };
        let told = with_causes(&error);
        let server = format!("PostgreSQL at {}", shown(host));
        if let Some(distrust) = Distrust::of(&told) {
            return distrust.explained(&server, ["sslrootcert", "sslcert", "sslkey"]).because(told);
        }
        let misfit = if has_no_tls(&error) {
            "it speaks without TLS there: write sslmode=disable, or prefer"
        } else if target.tls.mode == Mode::Disable && is_turned_away(&error) && has_tls(host).await {
            "it lets this user in by TLS alone: write sslmode=require, or verify-full"
        } else {
            return of_connecting(error);
        };
        Error::new(ErrorKind::Invalid, format!("cannot talk to {server}: {misfit}")).because(told)
    }
}

/// HOST:PORT, or the path of a socket.
fn shown(host: &Config) -> String {
    let port = host.get_ports().first().copied().unwrap_or(PORT);
    match host.get_hosts().first() {
        Some(Host::Tcp(name)) if name.contains(':') => format!("[{name}]:{port}"),
        Some(Host::Tcp(name)) => format!("{name}:{port}"),
        #[cfg(unix)]
        Some(Host::Unix(path)) => format!("{}/.s.PGSQL.{port}", path.display()),
        None => format!(":{port}"),
    }
}

/// Whether a server offers TLS to whoever asks for it.
async fn has_tls(host: &Config) -> bool {
    let port = host.get_ports().first().copied().unwrap_or(PORT);
    let name = match (host.get_hostaddrs().first(), host.get_hosts().first()) {
        (Some(address), _) => address.to_string(),
        (None, Some(Host::Tcp(name))) => name.clone(),
        _ => return false,
    };
    first_bytes((&name, port), &SSL_REQUEST, GREETING_MAX).await == Some([b'S'])
}

impl From<tokio_postgres::Error> for Failed {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::For(error)
    }
}

async fn connect_to(
    host: &Config,
    target: &Target,
    at: usize,
    ear: Option<Ear>,
    ended: &Arc<Notify>,
) -> std::result::Result<Client, Failed> {
    let room = target.rooms.get(at).and_then(|room| room.clone().try_acquire_owned().ok()).ok_or(Failed::Full)?;
    let (client, connection) = encrypted(host, target).await?;
    Handle::current().spawn(drive(connection, ear, ended.clone(), room));
    Ok(client)
}

type Connected = (Client, Connection<Socket, <Connector as MakeTlsConnect<Socket>>::Stream>);

/// Connects with TLS or without, and the other way if that fails and the URL leaves it open.
async fn encrypted(host: &Config, target: &Target) -> std::result::Result<Connected, tokio_postgres::Error> {
    let connect = |mode: SslMode| {
        let tls = target.tls.connector();
        let mut host = host.clone();
        host.ssl_mode(mode);
        async move { host.connect(tls).await }
    };
    // A socket of this machine has no TLS.
    let by_socket = !matches!(host.get_hosts().first(), Some(Host::Tcp(_)));
    let tries = if by_socket { &[SslMode::Disable] } else { target.tls.tries() };
    let (first, second) = (tries.first().copied().unwrap_or(SslMode::Disable), tries.get(1));
    let refusal = match (connect(first).await, second) {
        (Err(error), Some(_)) if is_turned_away(&error) || is_handshake(&error) => error,
        (answer, _) => return answer,
    };
    match connect(second.copied().unwrap_or(first)).await {
        // It lets nobody in this way: the other refusal says more.
        Err(error) if is_turned_away(&error) => Err(refusal),
        answer => answer,
    }
}

/// Carries a connection until its client is dropped or the server is gone.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    ear: Option<Ear>,
    ended: Arc<Notify>,
    _room: OwnedSemaphorePermit,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        match (message, &ear) {
            (Ok(AsyncMessage::Notification(heard)), Some(ear)) => ear(heard),
            (Ok(_), _) => {}
            (Err(error), _) => {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
                break;
            }
        }
    }
    ended.notify_one();
}
