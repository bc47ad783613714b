//! What a URL says: which servers, as whom, in which layout.

use std::fs;

use percent_encoding::percent_decode_str;
use redis::{ClientTlsConfig, TlsCertificates};

use crate::connect::redacted;
use crate::error::{Error, ErrorKind, Result, Step};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
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
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty()).then_some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// How the servers stand to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    /// One server.
    Single,
    /// Sentinels know which server is the master of this service.
    Sentinel { service: String },
    /// Names are spread over several masters by their hash slot.
    Cluster,
}

/// What a lock looks like in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// tenure's own: queues, tokens, every shape.
    Native,
    /// `SET key value NX PX ttl`, as redis-py, redsync, node-redlock and bsm/redislock do it.
    Plain,
    /// Redisson's `RLock`.
    Redisson,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Settings {
    /// Without a password, for messages.
    pub(super) shown: String,
    pub(super) topology: Topology,
    pub(super) addresses: Vec<Address>,
    pub(super) login: Login,
    pub(super) sentinel_login: Login,
    pub(super) db: i64,
    pub(super) layout: Layout,
    /// Certificates, if the servers speak TLS.
    pub(super) tls: Option<TlsCertificates>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let shown = redacted(url);
        let invalid =
            |problem: String| Error::new(ErrorKind::Invalid, format!("{shown:?} {problem}")).at(Step::Connect);
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid("has no host: write it as redis://HOST[:PORT][/DATABASE]".to_owned()))?;
        if rest.split_once('?').is_some_and(|(_, options)| options.contains('@')) {
            return Err(invalid("has an @ after a question mark: write @ as %40 and ? as %3F".to_owned()));
        }
        // Whatever a password holds, the last @ ends it.
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
        let mut settings = Self {
            topology,
            addresses,
            login: login.map(Login::parse).unwrap_or_default(),
            sentinel_login: Login::default(),
            db,
            layout: Layout::Native,
            tls: None,
            shown: shown.clone(),
        };
        settings.options(scheme == "rediss", options, &invalid)?;
        Ok(settings)
    }

    fn options(&mut self, tls: bool, options: &str, invalid: &impl Fn(String) -> Error) -> Result<()> {
        let mut tls = tls;
        let (mut ca, mut cert, mut key) = (None, None, None);
        let sentinel = matches!(self.topology, Topology::Sentinel { .. });
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decoded(value);
            match name {
                "layout" => {
                    self.layout = match value.as_str() {
                        "native" => Layout::Native,
                        "plain" => Layout::Plain,
                        "redisson" => Layout::Redisson,
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
                "ca" => ca = Some(value),
                "cert" => cert = Some(value),
                "key" => key = Some(value),
                "sentinel_user" if sentinel => self.sentinel_login.user = Some(value),
                "sentinel_password" if sentinel => self.sentinel_login.password = Some(value),
                _ => {
                    return Err(invalid(format!(
                        "has the unknown option {name:?}: there are layout, tls, ca, cert, key{}",
                        if sentinel { ", sentinel_user, sentinel_password" } else { "" }
                    )));
                }
            }
        }
        if !tls {
            if ca.is_some() || cert.is_some() || key.is_some() {
                return Err(invalid("has certificates but no TLS: write rediss://, or add tls=true".to_owned()));
            }
            return Ok(());
        }
        let read = |what: &str, path: &String| {
            fs::read(path).map_err(|error| {
                invalid(format!("names the {what} file {path:?}, which cannot be read")).because(error)
            })
        };
        let client_tls = match (&cert, &key) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read("certificate", cert)?, client_key: read("key", key)? })
            }
            (None, None) => None,
            _ => return Err(invalid("has one of cert and key: a client certificate needs both".to_owned())),
        };
        let root_cert = ca.map(|ca| read("CA", &ca)).transpose()?;
        self.tls = Some(TlsCertificates { client_tls, root_cert });
        Ok(())
    }
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
