//! What a URL says: which servers, as whom, in which layout.

use std::time::Duration;

use percent_encoding::percent_decode_str;
#[cfg(feature = "tls")]
use redis::{ClientTlsConfig, TlsCertificates};

#[cfg(not(feature = "tls"))]
use crate::backends::kit::no_tls::Never as TlsCertificates;
use crate::backends::kit::tls::Files;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::redact::{problem, redacted};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::backends) struct Address {
    pub(in crate::backends) host: String,
    pub(in crate::backends) port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Address {
    /// HOST:PORT, as servers write it.
    pub(in crate::backends) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty()).then_some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// How the servers stand to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backends) enum Topology {
    /// One server.
    Single,
    /// Sentinels know which server is the master of this service.
    Sentinel { service: String },
    /// Names are spread over several masters by their hash slot.
    Cluster,
    /// Every name is on all of several masters that know nothing of each other.
    Fleet,
}

/// What a lock looks like in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) enum Layout {
    /// tenure's own: queues, tokens, every shape.
    Native,
    /// `SET key value NX PX ttl`, as redis-py, redsync, node-redlock and bsm/redislock do it.
    Plain,
    /// Redisson's `RLock`.
    Redisson,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(in crate::backends) struct Login {
    pub(in crate::backends) user: Option<String>,
    pub(in crate::backends) password: Option<String>,
}

/// A parsed URL.
#[derive(Clone)]
pub(in crate::backends) struct Settings {
    /// Without a password, for messages.
    pub(in crate::backends) shown: String,
    pub(in crate::backends) topology: Topology,
    pub(in crate::backends) addresses: Vec<Address>,
    pub(in crate::backends) login: Login,
    pub(in crate::backends) sentinel_login: Login,
    pub(in crate::backends) db: i64,
    pub(in crate::backends) layout: Layout,
    /// How long one node of a fleet may take; none for what suits the ttl.
    pub(in crate::backends) node_timeout: Option<Duration>,
    /// How many replicas a lone server should have: what a majority is counted of.
    pub(in crate::backends) replicas: Option<u64>,
    /// Certificates, if the servers speak TLS.
    pub(in crate::backends) tls: Option<TlsCertificates>,
    /// Where the certificates were read.
    pub(in crate::backends) files: Files,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Settings {
    pub(in crate::backends) fn parse(url: &str) -> Result<Self> {
        let shown = redacted(url);
        let invalid =
            |problem: String| Error::new(ErrorKind::Invalid, format!("{shown:?} {problem}")).at(Step::Connect);
        if let Some(problem) = problem(url) {
            return Err(invalid(problem.to_owned()));
        }
        let (scheme, rest) = url
            .split_once("://")
            .filter(|(scheme, _)| !scheme.contains(':'))
            .ok_or_else(|| invalid("has no host: write it as redis://HOST[:PORT][/DATABASE]".to_owned()))?;
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let (topology, db) = match scheme {
            "redis+sentinel" => {
                let (service, db) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(invalid("names no service: write redis+sentinel://H1,H2,H3/SERVICE".to_owned()));
                }
                (Topology::Sentinel { service: decoded(service) }, db)
            }
            "redis+cluster" => (Topology::Cluster, path),
            "redlock" | "redlocks" => (Topology::Fleet, path),
            _ => (Topology::Single, path),
        };
        let db = if db.is_empty() { "0" } else { db };
        let db: i64 = db
            .parse()
            .ok()
            .filter(|db| *db >= 0)
            .ok_or_else(|| invalid(format!("names the database {db:?}: it must be a number, 0 if left out")))?;
        if topology == Topology::Cluster && db != 0 {
            return Err(invalid("names a database: a cluster has only database 0".to_owned()));
        }
        let port = if matches!(topology, Topology::Sentinel { .. }) { SENTINEL_PORT } else { PORT };
        let addresses: Vec<Address> = hosts
            .split(',')
            .map(|host| {
                address(host, port).ok_or_else(|| invalid("has a bad address: expected HOST[:PORT]".to_owned()))
            })
            .collect::<Result<_>>()?;
        if topology == Topology::Single && addresses.len() > 1 {
            return Err(invalid(
                "names several servers: write redis+cluster:// for a cluster, redis+sentinel://…/SERVICE for sentinels"
                    .to_owned(),
            ));
        }
        if topology == Topology::Fleet {
            check_fleet(&addresses).map_err(&invalid)?;
        }
        let login = login.map(Login::parse).unwrap_or_default();
        if login.user.is_some() && login.password.is_none() {
            return Err(invalid("names a user without a password: write USER:PASSWORD@HOST".to_owned()));
        }
        let mut settings = Self {
            topology,
            addresses,
            login,
            sentinel_login: Login::default(),
            db,
            layout: Layout::Native,
            node_timeout: None,
            replicas: None,
            tls: None,
            files: Files::default(),
            shown: shown.clone(),
        };
        settings.options(matches!(scheme, "rediss" | "redlocks"), options, &invalid)?;
        Ok(settings)
    }

    fn options(&mut self, tls: bool, options: &str, invalid: &impl Fn(String) -> Error) -> Result<()> {
        let mut tls = tls;
        let mut files = Files::default();
        let sentinel = matches!(self.topology, Topology::Sentinel { .. });
        let fleet = self.topology == Topology::Fleet;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decoded(value);
            match name {
                "layout" => {
                    self.layout = match value.as_str() {
                        "native" => Layout::Native,
                        "plain" => Layout::Plain,
                        "redisson" if !fleet => Layout::Redisson,
                        _ if fleet => {
                            return Err(invalid(format!("asks for the layout {value:?}: it is native or plain")));
                        }
                        _ => {
                            return Err(invalid(format!(
                                "asks for the layout {value:?}: it is native, plain or redisson"
                            )));
                        }
                    }
                }
                "tls" => {
                    tls = match value.as_str() {
                        "true" => true,
                        "false" if !tls => false,
                        _ => return Err(invalid(format!("has tls={value}: it is true, or left out"))),
                    }
                }
                "node_timeout" if fleet => {
                    self.node_timeout =
                        Some(node_timeout(&value).ok_or_else(|| {
                            invalid(format!("has node_timeout={value}: it is 1ms to 1s, such as 20ms"))
                        })?);
                }
                "replicas" if self.topology == Topology::Single => {
                    let count = value.parse().ok().filter(|count| (1..=REPLICAS_MAX).contains(count));
                    self.replicas = Some(count.ok_or_else(|| {
                        invalid(format!(
                            "has replicas={value}: it is how many replicas the server has when all are well"
                        ))
                    })?);
                }
                "ca" => files.ca = Some(value),
                "cert" => files.cert = Some(value),
                "key" => files.key = Some(value),
                "sentinel_user" if sentinel => self.sentinel_login.user = Some(value),
                "sentinel_password" if sentinel => self.sentinel_login.password = Some(value),
                _ => {
                    return Err(invalid(format!(
                        "has the unknown option {name:?}: there are layout, tls, ca, cert, key{}",
                        match self.topology {
                            Topology::Sentinel { .. } => ", sentinel_user, sentinel_password",
                            Topology::Fleet => ", node_timeout",
                            Topology::Single => ", replicas",
                            Topology::Cluster => "",
                        }
                    )));
                }
            }
        }
        if !tls {
            if files.any() {
                return Err(invalid("has certificates but no TLS: write rediss://, or add tls=true".to_owned()));
            }
            return Ok(());
        }
        self.tls = Some(certificates(&files).map_err(invalid)?);
        self.files = files;
        Ok(())
    }
}

#[cfg(not(feature = "tls"))]
fn certificates(_: &Files) -> std::result::Result<TlsCertificates, String> {
    Err(crate::backends::kit::no_tls::MISSING.to_owned())
}

/// What the files hold that a URL names.
#[cfg(feature = "tls")]
fn certificates(files: &Files) -> std::result::Result<TlsCertificates, String> {
    let pem = files.read(["cert", "key"])?;
    let client_tls = pem.identity.map(|own| ClientTlsConfig { client_cert: own.certificate, client_key: own.key });
    Ok(TlsCertificates { client_tls, root_cert: pem.ca })
}

/// The most replicas a URL may name: a typo is more likely than more.
const REPLICAS_MAX: u64 = 1000;

/// How many nodes a fleet may have.
const NODES_MIN: usize = 3;
const NODES_MAX: usize = 31;

fn check_fleet(addresses: &[Address]) -> Result<(), String> {
    if addresses.len() < NODES_MIN {
        return Err(format!(
            "names {} of the {NODES_MIN} or more nodes that Redlock needs: write redlock://H1,H2,H3, or redis://HOST for one server",
            addresses.len()
        ));
    }
    if addresses.len() > NODES_MAX {
        return Err(format!("names {} nodes: at most {NODES_MAX} are possible, 5 are usual", addresses.len()));
    }
    for (index, address) in addresses.iter().enumerate() {
        if addresses.iter().skip(index + 1).any(|other| other == address) {
            return Err(format!("names {address} twice: each node has one vote"));
        }
    }
    Ok(())
}

/// "20ms" or "1s": from a millisecond to a second.
fn node_timeout(text: &str) -> Option<Duration> {
    let millis = match text.strip_suffix("ms") {
        Some(millis) => millis.parse().ok()?,
        None => text.strip_suffix('s')?.parse::<u64>().ok()?.checked_mul(1000)?,
    };
    (1..=1000).contains(&millis).then(|| Duration::from_millis(millis))
}

impl Login {
    fn parse(login: &str) -> Self {
        let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        Self { user: Some(decoded(user)).filter(|user| !user.is_empty()), password: password.map(decoded) }
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn address(text: &str, port: u16) -> Option<Address> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        (host, if rest.is_empty() { port } else { rest.strip_prefix(':')?.parse().ok()? })
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (text, port),
        }
    };
    let plain = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@".contains(&byte));
    plain.then(|| Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_and_as_whom() {
        let settings = Settings::parse("redis://me:p%40ss%2Fword@db.example/3").unwrap();
        assert_eq!(settings.addresses, [Address { host: "db.example".to_owned(), port: 6379 }]);
        assert_eq!(settings.login.user.as_deref(), Some("me"));
        assert_eq!(settings.login.password.as_deref(), Some("p@ss/word"));
        assert_eq!((settings.db, settings.layout, settings.topology), (3, Layout::Native, Topology::Single));

        let settings = Settings::parse("redis+sentinel://:secret@a,b:1,[::1]:2/main/2?layout=plain").unwrap();
        assert_eq!(settings.topology, Topology::Sentinel { service: "main".to_owned() });
        let shown: Vec<String> = settings.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a:26379", "b:1", "[::1]:2"]);
        assert_eq!((settings.login.user, settings.db, settings.layout), (None, 2, Layout::Plain));

        assert_eq!(Settings::parse("redis://a?replicas=3").unwrap().replicas, Some(3));

        let settings = Settings::parse("redlock://a,b:1,c/1?node_timeout=20ms&layout=plain").unwrap();
        assert_eq!((settings.topology, settings.addresses.len(), settings.db), (Topology::Fleet, 3, 1));
        assert_eq!(settings.node_timeout, Some(Duration::from_millis(20)));
    }

    #[test]
    fn a_user_needs_a_password() {
        assert!(Settings::parse("redis://me@a").unwrap_err().to_string().contains("password"));
    }

    #[test]
    fn bad_urls_are_refused_without_showing_the_password() {
        for bad in [
            "redis:localhost",
            "redis://",
            "redis://u:hidden@a,b",
            "redis://u:hidden@a:port",
            "redis://u:hidden@a/x",
            "redis://u:hidden@a/-1",
            "redis://u:hidden@a?layout=fancy",
            "redis://u:hidden@a?colour=red",
            "redis://u:hidden@a?ca=/nowhere",
            "rediss://u:hidden@a?ca=/nowhere",
            "rediss://u:hidden@a?cert=/nowhere",
            "redis+sentinel://u:hidden@a,b",
            "redis+cluster://u:hidden@a,b/1",
            "redlock://u:hidden@a,b",
            "redlock://u:hidden@a,u:hidden@b,u:hidden@c",
            "redlock://u:hidden@a,b,a",
            "redlock://u:hidden@a,b,a:6379",
            "redlock://u:hidden@a,b,c?layout=redisson",
            "redlock://u:hidden@a,b,c?node_timeout=20",
            "redlock://u:hidden@a,b,c?node_timeout=2s",
            "redlock://u:hidden@a,b,c?node_timeout=0ms",
            "redis://u:hidden@a?node_timeout=20ms",
            "redis://u:hidden@a?replicas=0",
            "redis://u:hidden@a?replicas=many",
            "redis+sentinel://u:hidden@a/s?replicas=2",
            "redis+cluster://u:hidden@a?replicas=2",
            "redis://u:hidden@a/0/1",
            "redis://:hidden",
            "redis://u:hidden?x@a",
            "redis+sentinel://a:1/s?sentinel_password=x@hidden",
        ] {
            let error = Settings::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
    }
}
