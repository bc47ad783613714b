//! What the service logs: warnings, and with `--verbose` each request.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::Talk;

/// Logs to stderr from now on.
pub(super) fn install() {
    let level = match Talk::now() {
        Talk::Quiet => LevelFilter::ERROR,
        Talk::Usual => LevelFilter::INFO,
        Talk::Verbose => LevelFilter::DEBUG,
    };
    let only_ours = tracing_subscriber::filter::Targets::new()
        .with_target("tenure_server", level)
        .with_target("tenure", level.min(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    // No colours, on a terminal neither: nothing of tenure has any.
    let lines = lines.with_ansi(false);
    // It is the first and only one of this process.
    let _ = tracing_subscriber::registry().with(only_ours).with(lines).try_init();
}
