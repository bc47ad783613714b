//! Taking connections, serving them, and stopping.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::answer::Keeping;
use crate::connection::{Connection, Room, Slot};
use crate::limits::{ARRIVAL_MAX, HEAD_BYTES_MAX, STREAMS_MAX};
use crate::protocol::{Begun, Version};
use crate::socket::Socket;
use crate::write_limit::WriteLimit;

/// How many connections may wait to be taken: thousands of waiters may come at once.
const BACKLOG: u32 = 4_096;
/// The pause after a connection could not be taken: too many files are open, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long connections have to close when all was answered.
const END_MAX: Duration = Duration::from_secs(1);
/// When it is first asked whether the other end of a silent connection is there, how often after that, and how many
/// times.
const ALIVE_AFTER: Duration = Duration::from_secs(30);
const ALIVE_EVERY: Duration = Duration::from_secs(10);
const ALIVE_TRIES: u32 = 3;
/// Interval between checks for requests under way, once the service stops.
const QUIET_EVERY: Duration = Duration::from_millis(50);
/// The service has drained when this many checks in a row find no request.
const QUIET_CHECKS: u32 = 5;

/// Serves connections until it is told to stop, and what is under way to its end.
///
/// # Cancel safety
///
/// Cancelling closes all connections.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<ArcSwapOption<ServerConfig>>,
    router: Router,
    room: Arc<Room>,
    mut stop: watch::Receiver<bool>,
    reloads: watch::Receiver<u64>,
    drain: Duration,
) {
    let mut connections = JoinSet::new();
    // Connections are served until all waiting requests are answered, so that renewals and releases go on meanwhile.
    let (end, ends) = watch::channel(false);
    let stops = Stops { told: stop.clone(), ends, reloads };
    let drained = drained(&mut stop, &room, drain);
    let mut drained = std::pin::pin!(drained);
    loop {
        let accepted = tokio::select! {
            () = drained.as_mut() => break,
            Some(_) = connections.join_next() => continue,
            accepted = room.at_the_door(listener.accept()) => accepted,
        };
        let ((stream, address), door) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, mut stops) = (router.clone(), stops.clone());
        // What is read again from now on is not what this connection is let in by.
        stops.reloads.mark_unchanged();
        let (tls, room) = (tls.load_full(), room.clone());
        connections.spawn(async move {
            let Some(slot) = room.enter(address).await else { return };
            drop(door);
            take(stream, slot, tls, router, stops).await;
        });
    }
    drop(listener);
    end.send_replace(true);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(END_MAX, ended).await.is_err() {
        tracing::warn!("connections were closed that had not come to their end");
    }
}

/// When a connection is to end.
#[derive(Clone)]
struct Stops {
    /// The service was told to stop: requests are answered still, and callers asked to go elsewhere.
    told: watch::Receiver<bool>,
    /// Everything was answered.
    ends: watch::Receiver<bool>,
    /// Certificates were read again.
    reloads: watch::Receiver<u64>,
}

async fn take(stream: TcpStream, slot: Slot, tls: Option<Arc<ServerConfig>>, router: Router, stops: Stops) {
    // Answers are small, and somebody waits for each.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    let socket = Socket::new(stream);
    slot.connection.goes_over(&socket);
    let stream = WriteLimit::new(socket, slot.room().idle).telling(&slot.connection);
    match tls {
        None => serve_one(stream, None, slot, router, stops).await,
        // Apart, so that waiters without TLS need no room for it.
        Some(config) => Box::pin(secure(stream, config, slot, router, stops)).await,
    }
}

async fn secure(stream: WriteLimit<Socket>, config: Arc<ServerConfig>, slot: Slot, router: Router, stops: Stops) {
    let address = slot.connection.address;
    let shaking = tokio::time::timeout(ARRIVAL_MAX, TlsAcceptor::from(config).accept(stream));
    let connection = slot.connection.clone();
    let shaken = tokio::select! {
        shaken = shaking => shaken,
        () = connection.is_to_close() => return,
    };
    match shaken {
        Ok(Ok(stream)) => {
            let certified = certified(stream.get_ref().1.peer_certificates());
            serve_one(stream, certified, slot, router, stops).await;
        }
        Ok(Err(error)) => tracing::debug!(%address, %error, "no TLS"),
        Err(_) => tracing::debug!(%address, "no TLS in time"),
    }
}

async fn serve_one<S>(stream: S, certified: Option<Arc<str>>, slot: Slot, router: Router, mut stops: Stops)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let is_certified = certified.is_some();
    let (connection, room, peer) = (slot.connection.clone(), slot.room().clone(), slot.peer(certified));
    let idle = room.idle;
    let begun = tokio::select! {
        begun = tokio::time::timeout(idle, Begun::read(stream)) => begun,
        () = connection.is_to_close() => return,
        () = stopped(&mut stops.ends) => return,
    };
    let Ok(Ok((version, stream))) = begun else { return };
    let used = connection.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let busy = Slot::begin(&used, &room);
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        let answer = router.clone().oneshot(request);
        async move {
            let response = answer.await?;
            // Until the last byte was taken: a stream of events is not idle.
            Ok::<_, Infallible>(response.map(|body| Keeping::until_its_end(body, busy)))
        }
    });
    match version {
        Version::Http1 => {
            let serving = pin!(http1(idle).serve_connection(TokioIo::new(stream), service));
            // Each answer asks the caller to close, once the service stops.
            let goes_away = let_in_anew(&mut stops.reloads, is_certified);
            drive(serving, http1::Connection::graceful_shutdown, &connection, &mut stops.ends, goes_away).await;
        }
        Version::Http2 => {
            // Apart, so that waiters on connections of HTTP/1.1 need no room for it.
            let mut serving = Box::pin(http2().serve_connection(TokioIo::new(stream), service));
            let stops_here = async {
                stopped(&mut stops.told).await;
                // One that came later has its first request answered.
                connection.has_begun().await;
            };
            let goes_away = async {
                tokio::select! {
                    () = stops_here => {}
                    () = let_in_anew(&mut stops.reloads, is_certified) => {}
                    () = connection.stays_idle(idle) => {}
                }
            };
            let shut_down = http2::Connection::graceful_shutdown;
            drive(serving.as_mut(), shut_down, &connection, &mut stops.ends, goes_away).await;
        }
    }
}

fn http1(idle: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(idle).max_buf_size(HEAD_BYTES_MAX);
    builder
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(ARRIVAL_MAX);
    builder
}

/// Serves requests until the connection ends, the service stops, or room is needed.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    mut serving: Pin<&mut C>,
    shut_down: fn(Pin<&mut C>),
    connection: &Connection,
    stop: &mut watch::Receiver<bool>,
    goes_away: impl Future<Output = ()>,
) {
    let mut goes_away = pin!(goes_away);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::trace!(%error, "a connection ended");
                }
                return;
            }
            () = stopped(stop), if !stopping => {
                stopping = true;
                shut_down(serving.as_mut());
            }
            () = goes_away.as_mut(), if !stopping => {
                stopping = true;
                shut_down(serving.as_mut());
            }
            () = connection.is_to_close(), if !stopping => {
                if connection.is_idle() {
                    // Nothing but half a head can be lost.
                    return;
                }
                stopping = true;
                shut_down(serving.as_mut());
            }
        }
    }
}

/// Resolves when the service was told to stop and nothing is under way any more, or the time for that is over.
async fn drained(stop: &mut watch::Receiver<bool>, room: &Room, drain: Duration) {
    stopped(stop).await;
    let quiet = async {
        let mut checks = 0;
        while checks < QUIET_CHECKS {
            tokio::time::sleep(QUIET_EVERY).await;
            checks = if room.is_quiet() { checks + 1 } else { 0 };
        }
    };
    // Requests that are cut off now had the whole drain time.
    let _ = tokio::time::timeout(drain, quiet).await;
}

/// Has the system find out whether the other end is still there, where nothing is said for long: a stream of events
/// ends that nobody has closed.
fn keep_alive(stream: &TcpStream) {
    // Where the system refuses, writes that are stuck still end a connection.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, ALIVE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(stream, ALIVE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, ALIVE_TRIES);
}

/// The common name in the certificate that a caller showed.
fn certified(certificates: Option<&[CertificateDer<'_>]>) -> Option<Arc<str>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificates?.first()?).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.into())
}

/// Resolves when a caller that was let in by its certificate has to show it again: the authority may be another.
async fn let_in_anew(reloads: &mut watch::Receiver<u64>, is_certified: bool) {
    if !is_certified || reloads.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Resolves when the service is told to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Whoever could tell is gone: that is the end as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Listens.
///
/// # Errors
///
/// The system's.
///
/// # Cancel safety
///
/// Cancel safe: nothing was taken yet.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // An instance that is started anew finds its address free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
