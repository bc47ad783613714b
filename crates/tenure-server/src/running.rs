//! Starting an instance, having it read its files anew, and stopping it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use metrics_exporter_prometheus::PrometheusHandle;
use rustls::ServerConfig;
use tenure::clock::{Clock, SystemClock};
use tenure::{Error, ErrorKind, Tenure};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api;
use crate::auth::Tokens;
use crate::connection::Room;
use crate::gate::Gate;
use crate::limits::Limits;
use crate::server;
use crate::service::Service;
use crate::tls::TlsFiles;

/// How often histograms are brought together, so that they do not grow while nobody scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// How to serve.
#[derive(Clone)]
pub struct Options {
    /// The store's URL.
    pub store: String,
    /// Where to listen.
    pub listen: SocketAddr,
    /// The file of tokens; without it nobody is asked who they are.
    pub tokens: Option<PathBuf>,
    /// TLS; without it plain HTTP is spoken.
    pub tls: Option<TlsFiles>,
    /// What is allowed at once.
    pub limits: Limits,
    /// Names of this service besides those of the loopback, where there are no tokens.
    pub hosts: Vec<String>,
    /// How long what is under way may take once it is told to stop.
    pub drain: Duration,
    /// Whose metrics `/metrics` shows: those of the recorder that this process has installed.
    pub metrics: Option<PrometheusHandle>,
    /// Names are told apart in metrics by these first segments of them, at most 64; not at all if there are none.
    pub groups: Vec<String>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = tenure::redacted(&self.store);
        f.debug_struct("Options").field("store", &store).field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl Options {
    /// On a store, at an address, for callers of this machine.
    pub fn new(store: impl Into<String>, listen: SocketAddr) -> Self {
        let (store, limits) = (store.into(), Limits::default());
        let drain = Duration::from_secs(10);
        Self {
            store,
            listen,
            tokens: None,
            tls: None,
            limits,
            hosts: Vec::new(),
            drain,
            metrics: None,
            groups: Vec::new(),
        }
    }
}

/// Why an instance did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// What was asked for cannot be: the message says what to change.
    Options(String),
    /// The address cannot be listened at.
    Listen(SocketAddr, std::io::Error),
    /// The store cannot be used.
    Store(Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(message) => f.write_str(message),
            Self::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Options(_) => None,
            Self::Listen(_, error) => Some(error),
            Self::Store(error) => Some(error),
        }
    }
}

/// An instance that serves.
pub struct Running {
    address: SocketAddr,
    service: Arc<Service>,
    files: Files,
    tls: Arc<ArcSwapOption<ServerConfig>>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
}

/// What is read again when asked to.
#[derive(Debug)]
struct Files {
    tokens: Option<PathBuf>,
    tls: Option<TlsFiles>,
}

/// Starts an instance.
///
/// # Errors
///
/// [`StartError::Options`] off loopback without tokens, for a store that is a service itself, for files that are wrong;
/// the others as they say.
///
/// # Cancel safety
///
/// Cancel safe: nothing is served yet.
pub async fn start(options: Options) -> Result<Running, StartError> {
    let Options { store, listen, tokens, tls, limits, hosts, drain, metrics, groups } = options;
    let limits = limits.consistent();
    if store.starts_with("http:") || store.starts_with("https:") {
        let message = "the store is a service itself: name the store that it serves (redis://…, etcd://…)";
        return Err(StartError::Options(message.to_owned()));
    }
    if !listen.ip().is_loopback() && tokens.is_none() {
        return Err(StartError::Options(format!(
            "{listen} is open to other machines, and nobody would be asked who they are: give --tokens FILE \
            (`tenure serve token NAME` makes one), or listen at 127.0.0.1"
        )));
    }
    let files = Files { tokens, tls };
    let known = files.read_tokens().map_err(StartError::Options)?;
    let config = files.read_tls().map_err(StartError::Options)?;
    let tls = Arc::new(ArcSwapOption::from(config));
    let listener = server::listen(listen).await.map_err(|error| StartError::Listen(listen, error))?;
    let address = listener.local_addr().map_err(|error| StartError::Listen(listen, error))?;

    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    // Two clients of one store: in memory they must be of the same.
    let store = if store == "memory:" { format!("memory:serve-{:016x}", rand::random::<u64>()) } else { store };
    let backend = tenure::backend::open(&store, clock.clone()).await.map_err(StartError::Store)?;
    let label = format!("tenure serve {address}");
    let mut looking = Tenure::builder(&store).label(&label);
    if !groups.is_empty() {
        looking = looking.metric_groups(&groups);
    }
    let tenure = looking.connect().await.map_err(StartError::Store)?;
    let tokens = known.map(|tokens| ArcSwap::new(Arc::new(tokens)));
    let gate = Gate { tokens, hosts, reloads: watch::channel(0).0 };
    let service = Service::new(backend.clone(), clock, tenure, gate, limits, metrics.clone(), &groups);

    let (stop, stops) = watch::channel(false);
    let reloads = service.gate.reloads.subscribe();
    let router = api::router(service.clone());
    let room = Room::new(limits.connections, limits.idle);
    let serving = tokio::spawn(server::serve(listener, tls.clone(), router, room, stops, reloads, drain));
    let mut background =
        vec![tokio::spawn(service.health.clone().keep_asking(backend)), tokio::spawn(service.clone().keep_reporting())];
    if let Some(metrics) = metrics {
        background.push(tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP_EVERY).await;
                metrics.run_upkeep();
            }
        }));
    }
    Ok(Running { address, service, files, tls, stop, serving, background })
}

impl Files {
    fn read_tokens(&self) -> Result<Option<Tokens>, String> {
        self.tokens.as_deref().map(Tokens::read).transpose()
    }

    fn read_tls(&self) -> Result<Option<Arc<ServerConfig>>, String> {
        self.tls.as_ref().map(TlsFiles::read).transpose()
    }
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads tokens and certificates anew. If one of the files is wrong nothing changes. Answers what people should
    /// know: names that are gone, whose claims nobody can renew or release any more.
    ///
    /// # Errors
    ///
    /// What is wrong, and with which file.
    pub fn reload(&self) -> Result<Vec<String>, String> {
        // Both before either: half of a change may be worse than none.
        let (tokens, tls) = (self.files.read_tokens()?, self.files.read_tls()?);
        let mut told = Vec::new();
        if let (Some(tokens), Some(known)) = (tokens, &self.service.gate.tokens) {
            let before = known.swap(Arc::new(tokens));
            for name in before.missing_in(&known.load()) {
                told.push(format!("{name} is gone: its claims end by their ttls"));
            }
        }
        self.tls.store(tls);
        // Waits and streams look whether they still have their right.
        self.service.gate.reloads.send_modify(|count| *count += 1);
        Ok(told)
    }

    /// Takes no more connections, and has every request that waits answered at once. Their claims stay in the store, in
    /// their places, for the requests that repeat them at another instance.
    pub fn stop(&self) {
        self.service.claims.stop();
        self.service.feed.stop();
        self.stop.send_replace(true);
    }

    /// Waits until everything that was under way has come to its end, for as long as [`Options::drain`] says after
    /// [`stop`](Self::stop).
    ///
    /// # Cancel safety
    ///
    /// Cancelling closes all connections.
    pub async fn ended(mut self) {
        let _ = (&mut self.serving).await;
        let _ = self.service.tenure.close().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
        self.background.iter().for_each(JoinHandle::abort);
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("address", &self.address).finish_non_exhaustive()
    }
}

impl StartError {
    /// Whether what was asked for is wrong, and not what it was asked of.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Options(_) => true,
            Self::Listen(..) => false,
            Self::Store(error) => error.kind() == ErrorKind::Invalid,
        }
    }
}
