//! `postgres://USER:PASSWORD@HOST[:PORT][,HOST2]/DATABASE?OPTIONS`.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslNegotiation, TargetSessionAttrs};

use super::sslmode::Mode;
use super::tls::Tls;
use crate::backends::kit::tls::Files;
use crate::error::{Error, ErrorKind, Result, Step, with_causes};
use crate::redact::{problem, redacted};

/// The schema that has tenure's tables.
const SCHEMA: &str = "tenure";
/// The longest name PostgreSQL keeps.
const SCHEMA_MAX: usize = 63;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what was sent may go unacknowledged before the connection counts as dead.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// The most connections of a client to one host: twice as many as it ever works with. One that was given up because
/// it does not answer stays, here and in the server, until it has answered.
const CONNECTIONS_MAX: usize = 24;

/// Where to connect, and how.
#[derive(Clone)]
pub(super) struct Target {
    /// One for each host, in order.
    pub(super) hosts: Vec<Config>,
    /// How many connections to each there may be.
    pub(super) rooms: Vec<Arc<Semaphore>>,
    pub(super) tls: Tls,
}

impl Target {
    fn of(hosts: Vec<Config>, tls: Tls) -> Self {
        let rooms = hosts.iter().map(|_| Arc::new(Semaphore::new(CONNECTIONS_MAX))).collect();
        Self { hosts, rooms, tls }
    }
}

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Settings {
    /// Without a password, for messages.
    pub(super) shown: String,
    pub(super) target: Target,
    /// Where to listen, if the servers above are behind a pooler.
    pub(super) listen: Option<Target>,
    /// Quoted, for statements.
    pub(super) schema: String,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

/// The options of a URL that are tenure's, and the URL without them.
#[derive(Default)]
struct Options {
    rest: String,
    schema: Option<String>,
    listen: Option<String>,
    tls_mode: Option<String>,
    files: Files,
}

impl Options {
    fn of(url: &str) -> Self {
        let (place, options) = url.split_once('?').unwrap_or((url, ""));
        let (mut found, mut left) = (Self::default(), Vec::new());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
            match name {
                "schema" => found.schema = value,
                "listen" => found.listen = value,
                "sslmode" => found.tls_mode = value,
                "sslrootcert" => found.files.ca = value,
                "sslcert" => found.files.cert = value,
                "sslkey" => found.files.key = value,
                _ => left.push(option),
            }
        }
        found.rest = if left.is_empty() { place.to_owned() } else { format!("{place}?{}", left.join("&")) };
        found
    }

    fn tls(&self) -> std::result::Result<Tls, String> {
        let mode = match &self.tls_mode {
            None => Mode::default(),
            Some(text) => Mode::parse(text).ok_or_else(|| {
                format!("has sslmode={text}: it is disable, allow, prefer, require, verify-ca or verify-full")
            })?,
        };
        Tls::of(mode, &self.files)
    }
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let shown = redacted(url);
        let invalid =
            |problem: String| Error::new(ErrorKind::Invalid, format!("{shown:?} {problem}")).at(Step::Connect);
        if let Some(problem) = problem(url) {
            return Err(invalid(problem.to_owned()));
        }
        let options = Options::of(url);
        let schema = options.schema.clone().unwrap_or_else(|| SCHEMA.to_owned());
        if schema.is_empty() || schema.len() > SCHEMA_MAX || schema.contains('\0') {
            return Err(invalid(format!("names the schema {schema:?}: it has 1 to {SCHEMA_MAX} bytes")));
        }
        let configured = |options: &Options| -> Result<Config> {
            let no_host = || invalid("names no host: write it as postgres://USER@HOST/DATABASE".to_owned());
            // Anything else would be read as a list of KEY=VALUE.
            if !options.rest.starts_with("postgres://") && !options.rest.starts_with("postgresql://") {
                return Err(no_host());
            }
            let config = Config::from_str(&options.rest)
                .map_err(|error| invalid("cannot be understood".to_owned()).because(with_causes(&error)))?;
            if config.get_hosts().is_empty() {
                return Err(no_host());
            }
            Ok(config)
        };
        let encrypted = |tls: Tls, config: &Config| -> Result<Tls> {
            if tls.mode.is_weak() && config.get_ssl_negotiation() == SslNegotiation::Direct {
                return Err(invalid("has sslnegotiation=direct: write sslmode=require, or verify-full".to_owned()));
            }
            Ok(tls)
        };
        let tls = options.tls().map_err(&invalid)?;
        let config = configured(&options)?;
        let tls = encrypted(tls, &config)?;
        let listen = match &options.listen {
            None => None,
            Some(direct) => {
                let direct = if direct.contains("://") { direct.clone() } else { format!("postgres://{direct}") };
                if let Some(problem) = problem(&direct) {
                    let problem = format!("has a URL with listen= that {problem}; then encode all of it once more");
                    return Err(invalid(problem));
                }
                let own = Options::of(&direct);
                if own.schema.is_some() || own.listen.is_some() {
                    return Err(invalid("names a schema or another listen= within listen=".to_owned()));
                }
                let says_tls = own.tls_mode.is_some() || own.files.any();
                let tls = if says_tls { own.tls().map_err(&invalid)? } else { tls.clone() };
                let config = inheriting(configured(&own)?, &config);
                Some(Target::of(each_host(&config), encrypted(tls, &config)?))
            }
        };
        Ok(Self {
            target: Target::of(each_host(&config), tls),
            listen,
            schema: format!("\"{}\"", schema.replace('"', "\"\"")),
            shown: shown.clone(),
        })
    }
}

/// A direct connection is made as the same user, to the same database, unless it says otherwise.
fn inheriting(mut config: Config, from: &Config) -> Config {
    if let (None, Some(user)) = (config.get_user(), from.get_user()) {
        config.user(user);
        if let (None, Some(password)) = (config.get_password(), from.get_password()) {
            config.password(password);
        }
    }
    if let (None, Some(database)) = (config.get_dbname(), from.get_dbname()) {
        config.dbname(database);
    }
    config
}

/// The hosts of a URL, each by itself, with what the URL leaves open.
fn each_host(all: &Config) -> Vec<Config> {
    let one = |(index, host): (usize, &Host)| {
        let mut config = Config::new();
        match host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(path) => config.host_path(path),
        };
        if let Some(address) = all.get_hostaddrs().get(index) {
            config.hostaddr(*address);
        }
        let ports = all.get_ports();
        if let Some(port) = ports.get(index).or(ports.first()) {
            config.port(*port);
        }
        if let Some(user) = all.get_user() {
            config.user(user);
        }
        if let Some(password) = all.get_password() {
            config.password(password);
        }
        if let Some(database) = all.get_dbname() {
            config.dbname(database);
        }
        if let Some(options) = all.get_options() {
            config.options(options);
        }
        config
            .application_name(all.get_application_name().unwrap_or("tenure"))
            .connect_timeout(all.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT))
            .ssl_negotiation(all.get_ssl_negotiation())
            .channel_binding(all.get_channel_binding())
            .tcp_user_timeout(SILENT_MAX)
            .keepalives_idle(SILENT_MAX)
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(3)
            // A standby takes no locks.
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        config
    };
    all.get_hosts().iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_and_as_whom() {
        let settings = Settings::parse("postgres://me:p%40ss@a:1,b:2/app?schema=locks&connect_timeout=2").unwrap();
        assert_eq!(settings.target.hosts.len(), 2);
        for (config, (host, port)) in settings.target.hosts.iter().zip([("a", 1), ("b", 2)]) {
            assert_eq!((config.get_hosts(), config.get_ports()), (&[Host::Tcp(host.to_owned())][..], &[port][..]));
            assert_eq!((config.get_user(), config.get_password()), (Some("me"), Some(&b"p@ss"[..])));
            assert_eq!(config.get_dbname(), Some("app"));
            assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(2)));
        }
        assert_eq!(settings.schema, "\"locks\"");
        assert_eq!(settings.shown, "postgres://me:***@a:1,b:2/app?schema=locks&connect_timeout=2");
        assert!(settings.listen.is_none() && settings.target.tls.mode == Mode::Prefer);
        let settings = Settings::parse("postgres://h/db?schema=a%22b").unwrap();
        assert_eq!(settings.schema, "\"a\"\"b\"");
    }

    #[test]
    fn listening_elsewhere_is_as_the_same_user_unless_told() {
        let listens = |url: &str| Settings::parse(url).unwrap().listen.unwrap().hosts.remove(0);
        let config = listens("postgres://me:secret@pooler:6432/db?listen=direct:5433");
        assert_eq!((config.get_user(), config.get_password()), (Some("me"), Some(&b"secret"[..])));
        assert_eq!((config.get_dbname(), config.get_ports()), (Some("db"), &[5433][..]));
        let config = listens("postgres://me:secret@pooler/alias?listen=postgres%3A%2F%2Fyou%3Ahidden%40direct%2Freal");
        assert_eq!((config.get_user(), config.get_password()), (Some("you"), Some(&b"hidden"[..])));
        assert_eq!(config.get_dbname(), Some("real"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, problem) in [
            ("postgres://u:hidden@h/db?schema=", "1 to 63 bytes"),
            ("postgres://u:hidden@h/db?sslmode=always", "sslmode=always"),
            ("postgres://u:hidden@h/db?sslrootcert=x", "checks no certificate"),
            ("postgres://u:hidden@h/db?sslmode=require&sslrootcert=system", "verify-full"),
            ("postgres://u:hidden@h/db?sslmode=disable&sslcert=x&sslkey=x", "no TLS"),
            ("postgres://u:hidden@h/db?sslmode=prefer&sslcert=x", "sslcert and sslkey"),
            ("postgres://u:hidden@h/db?sslnegotiation=direct", "sslmode=require"),
            ("postgres://u:hidden@h/db?sslmode=verify-full&sslrootcert=/no/such", "/no/such"),
            ("postgres://u:hidden@h/db?layout=plain", "understood"),
            ("postgres://u:hid@den@h/db", "%40"),
            ("postgres:///db", "no host"),
            ("postgres://h/db?listen=postgres%3A%2F%2Fu%3Ahidden%40h%2F%3Fschema%3Dx", "within listen="),
            ("postgres://h/db?listen=postgres%3A%2F%2Fu%3Ahidden%40h%2F%3Fsslmode%3Dalways", "sslmode=always"),
        ] {
            let error = Settings::parse(url).unwrap_err();
            let text = format!("{error:?}");
            assert!(error.kind() == ErrorKind::Invalid && text.contains(problem), "{url}: {text}");
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}
