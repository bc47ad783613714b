//! `serve`: the lock service.

mod files;
mod log;
mod token;

use std::net::SocketAddr;

use metrics_exporter_prometheus::PrometheusBuilder;
use tenure_server::{Options, Running, StartError, TlsFiles};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Serve, ServeCommand};
use crate::exit::Exit;
use crate::failure::{Failure, note, warn};
use crate::groups;
use crate::metrics_file::BUCKETS;
use crate::output;
use crate::store::Store;

pub(crate) async fn run(
    args: Serve,
    store: impl FnOnce() -> Result<Store, Failure>,
    json: bool,
) -> Result<Exit, Failure> {
    if let Some(ServeCommand::Token(args)) = &args.command {
        return token::make(args, json);
    }
    let store = store()?;
    log::install();
    let connections = connections(args.connections, json);
    // Before anything else: a SIGHUP while it starts must not end it.
    let signals = Signals::listen()?;
    let running = start(&args, &store, connections).await?;
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", running.address());
    if json {
        output::print_json(&Told { listening: &url, store: &store.shown() })?;
    } else {
        note(&format!("serving {} at {url}", store.shown()), json);
    }
    until_told_to_stop(running, signals, json).await
}

/// Where to listen.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "not an IP address and port, such as 127.0.0.1:7420".to_owned())
}

#[derive(serde::Serialize)]
struct Told<'a> {
    listening: &'a str,
    store: &'a str,
}

/// As many connections as were asked for, or as the files allow that this process may open.
fn connections(asked: usize, json: bool) -> usize {
    let files = files::raise_limit();
    let connections = files::connections_within(files, asked);
    if let (Some(files), true) = (files, connections < asked) {
        warn(
            &format!(
                "this process may open {files} files, too few for --connections {asked}: it serves {connections} at \
                once; raise `ulimit -n` (systemd: LimitNOFILE), or give a smaller --connections"
            ),
            json,
        );
    }
    connections
}

async fn start(args: &Serve, store: &Store, connections: usize) -> Result<Running, Failure> {
    let refused =
        |error: &dyn std::fmt::Display| Failure::new(Exit::Unavailable, format!("metrics cannot be counted: {error}"));
    let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS).map_err(|error| refused(&error))?.build_recorder();
    let metrics = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| refused(&error))?;
    let mut options = Options::new(store.url(), args.listen);
    options.metrics = Some(metrics);
    options.tokens.clone_from(&args.tokens);
    options.groups = groups::checked(&args.groups)?.to_vec();
    options.hosts.clone_from(&args.host);
    options.drain = args.drain;
    options.limits.connections = connections;
    options.limits.waiters = args.waiters;
    options.limits.waiters_of_caller = args.waiters_of_caller.unwrap_or(args.waiters);
    options.limits.waiters_for_name = args.waiters_for_name.unwrap_or(args.waiters);
    options.limits.streams = args.streams;
    if let (Some(certificate), Some(key)) = (args.tls_cert.clone(), args.tls_key.clone()) {
        options.tls = Some(TlsFiles { certificate, key, client_ca: args.client_ca.clone() });
    }
    tenure_server::start(options).await.map_err(|error| match error {
        StartError::Store(error) => error.into(),
        error if error.is_usage() => Failure::usage(error.to_string()),
        error => Failure::new(Exit::Unavailable, error.to_string()),
    })
}

/// The signals that it hears.
struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::new(Exit::Unavailable, format!("signals cannot be heard: {error}")))
        };
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }
}

/// Serves until SIGINT or SIGTERM; SIGHUP has the files read again.
async fn until_told_to_stop(running: Running, signals: Signals, json: bool) -> Result<Exit, Failure> {
    let Signals { mut hangup, mut interrupt, mut terminate } = signals;
    let kind = loop {
        tokio::select! {
            _ = hangup.recv() => match running.reload() {
                Ok(told) => {
                    note("read tokens and certificates again", json);
                    told.iter().for_each(|line| warn(line, json));
                }
                Err(problem) => warn(&format!("nothing was changed: {problem}"), json),
            },
            _ = interrupt.recv() => break SignalKind::interrupt(),
            _ = terminate.recv() => break SignalKind::terminate(),
        }
    };
    note(&format!("{}: answering what is under way", crate::signals::name(kind.as_raw_value())), json);
    running.stop();
    running.ended().await;
    Ok(Exit::Done)
}
