//! `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST2[:PORT]]/CHROOT?OPTIONS`.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::names::is_path;
use super::tls::Tls;
use crate::backends::kit::tls::Files;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::redact::{problem, redacted};

const PORT: u16 = 2181;
const OPTIONS: &str = "auth, tick, tls, ca, cert, key";
/// More than any ensemble has.
const HOSTS_MAX: usize = 64;

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Settings {
    /// Without a password, for messages.
    pub(super) shown: String,
    pub(super) hosts: Vec<(String, u16)>,
    /// The znode that has the names as children; empty for the root.
    pub(super) root: String,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Tls>,
    /// The servers' tickTime, where they do not tell.
    pub(super) tick: Option<Duration>,
}

/// Who the client is.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
    pub(super) scheme: Scheme,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:*** by {:?}", self.user, self.scheme)
    }
}

/// How the client says who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// The servers believe it, and compare it with what nodes say.
    Digest,
    /// The servers know their users (DIGEST-MD5).
    Sasl,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let shown = redacted(url);
        let invalid = |problem: &str| Error::new(ErrorKind::Invalid, format!("{shown:?} {problem}")).at(Step::Connect);
        if let Some(problem) = problem(url) {
            return Err(invalid(problem));
        }
        let Some(rest) = url.strip_prefix("zookeeper://") else {
            return Err(invalid("is not a ZooKeeper's URL: write zookeeper://HOST1,HOST2,HOST3/CHROOT"));
        };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let (hosts, chroot) = place.split_once('/').unwrap_or((place, ""));
        let login = login.map(|login| {
            parse_login(login).ok_or_else(|| invalid("has a user without a password: write USER:PASSWORD@HOST"))
        });
        let hosts = parse_hosts(hosts).map_err(|problem| invalid(&problem))?;
        let root = parse_root(chroot).map_err(|problem| invalid(&problem))?;
        let (mut tick, mut scheme, mut tls, mut files) = (None, None, false, Files::default());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "tick" => {
                    tick = Some(parse_span(value).ok_or_else(|| {
                        invalid(&format!(
                            "has tick={value}: it is the servers' tickTime, such as tick=2s or tick=500ms"
                        ))
                    })?);
                }
                "auth" => {
                    scheme = Some(match value {
                        "digest" => Scheme::Digest,
                        "sasl" => Scheme::Sasl,
                        _ => return Err(invalid(&format!("has auth={value}: it is digest or sasl"))),
                    });
                }
                "tls" if value == "true" => tls = true,
                "tls" => return Err(invalid(&format!("has tls={value}: it is true, or left out"))),
                "ca" => files.ca = decoded(value),
                "cert" => files.cert = decoded(value),
                "key" => files.key = decoded(value),
                _ => {
                    let problem = format!("has the unknown option {name:?}: there are {OPTIONS}");
                    return Err(invalid(&problem));
                }
            }
        }
        let tls = match tls {
            true => Some(Tls::of(&files).map_err(|problem| invalid(&problem))?),
            false if files.any() => return Err(invalid("has certificates but no TLS: add tls=true")),
            false => None,
        };
        let login = match (login.transpose()?, scheme) {
            (None, Some(_)) => return Err(invalid("says how to log in and not as whom: write USER:PASSWORD@")),
            (None, None) => None,
            (Some((user, password)), scheme) => {
                Some(Login { user, password, scheme: scheme.unwrap_or(Scheme::Digest) })
            }
        };
        Ok(Self { hosts, root, login, tls, tick, shown: shown.clone() })
    }

    /// Some of the servers, as the client library wants them.
    pub(super) fn servers(&self, hosts: &[(String, u16)]) -> String {
        let protocol = if self.tls.is_some() { "tcp+tls://" } else { "" };
        let shown = |(host, port): &(String, u16)| match host.contains(':') {
            true => format!("{protocol}[{host}]:{port}"),
            false => format!("{protocol}{host}:{port}"),
        };
        hosts.iter().map(shown).collect::<Vec<_>>().join(",")
    }
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned())
}

fn parse_login(login: &str) -> Option<(String, String)> {
    let (user, password) = login.split_once(':')?;
    let (user, password) = (decoded(user)?, decoded(password)?);
    // A colon would end the user in what is sent.
    (!user.is_empty() && !user.contains(':') && !password.is_empty()).then_some((user, password))
}

fn parse_hosts(hosts: &str) -> std::result::Result<Vec<(String, u16)>, String> {
    let mut parsed = Vec::new();
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, None),
            Some((name, port)) => (name, Some(port.strip_prefix(':').ok_or("has an address that is none")?)),
            None => match host.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (host, None),
            },
        };
        let port = match port {
            None => PORT,
            Some(port) => port.parse::<u16>().ok().filter(|port| *port > 0).ok_or("has a port that is none")?,
        };
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '%') {
            return Err("names no host: write it as zookeeper://HOST1,HOST2,HOST3/CHROOT".to_owned());
        }
        parsed.push((name.to_owned(), port));
    }
    if parsed.len() > HOSTS_MAX {
        return Err(format!("names more than {HOSTS_MAX} hosts"));
    }
    Ok(parsed)
}

fn parse_root(chroot: &str) -> std::result::Result<String, String> {
    let chroot = chroot.trim_end_matches('/');
    if chroot.is_empty() {
        return Ok(String::new());
    }
    if chroot.contains(',') {
        return Err(format!(
            "has the chroot {chroot:?}: it is named once, behind all hosts, as zookeeper://HOST1,HOST2,HOST3/CHROOT (a comma in it is %2C)"
        ));
    }
    let root = decoded(chroot).map(|chroot| format!("/{chroot}")).filter(|root| is_path(root));
    root.ok_or_else(|| format!("has the chroot {chroot:?}, which is no znode's path"))
}

fn parse_span(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = number.parse().ok()?;
    let span = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    (!span.is_zero() && span <= Duration::from_secs(600)).then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_and_as_whom() {
        let settings = Settings::parse("zookeeper://me:p%40s%3As@a:1,b,[::1]:3/app/lo%20cks/?tick=500ms").unwrap();
        assert_eq!(settings.servers(&settings.hosts), "a:1,b:2181,[::1]:3");
        assert_eq!(settings.root, "/app/lo cks");
        let login = |scheme| Some(Login { user: "me".to_owned(), password: "p@s:s".to_owned(), scheme });
        assert_eq!(settings.login, login(Scheme::Digest));
        assert!(!format!("{:?}", settings.login).contains("p@s"));
        let sasl = Settings::parse("zookeeper://me:p%40s%3As@a/x?auth=sasl").unwrap();
        assert_eq!(sasl.login, login(Scheme::Sasl));
        assert_eq!(settings.tick, Some(Duration::from_millis(500)));
        assert_eq!(settings.shown, "zookeeper://me:***@a:1,b,[::1]:3/app/lo%20cks/?tick=500ms");
        for url in ["zookeeper://h", "zookeeper://h/"] {
            let settings = Settings::parse(url).unwrap();
            assert_eq!((settings.servers(&settings.hosts).as_str(), settings.root.as_str()), ("h:2181", ""));
            assert!(settings.login.is_none() && settings.tick.is_none());
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, problem) in [
            ("zookeeper://u:hidden@h/x?layout=plain", "unknown option \"layout\""),
            ("zookeeper://u:hidden@h/x?tick=2", "tick=2"),
            ("zookeeper://u:hidden@h/x?auth=kerberos", "auth=kerberos"),
            ("zookeeper://h/x?auth=sasl", "not as whom"),
            ("zookeeper://u:hidden@h/x?tls=yes", "tls=yes"),
            ("zookeeper://u:hidden@h/x?ca=/x", "no TLS"),
            ("zookeeper://u:hidden@h/x?tls=true", "no authority"),
            ("zookeeper://u:hidden@h/x?tls=true&ca=/no/such", "/no/such"),
            ("zookeeper://u:hidden@h/x?tick=0s", "tick=0s"),
            ("zookeeper://u:1?hidden@h/x", "%3F"),
            ("zookeeper://u:1?tick=hidden@h/x", "%3F"),
            ("zookeeper://u:1/hidden@h/x", "%2F"),
            ("zookeeper://u:hidden@h:0/x", "port"),
            ("zookeeper://u:hidden@,h/x", "no host"),
            ("zookeeper:///x", "no host"),
            ("zookeeper://u@h/x", "without a password"),
            ("zookeeper://u:hidden@h/a//b", "no znode's path"),
            ("zookeeper://u:hidden@h1/a,h2/a", "behind all hosts"),
            ("zookeeper://u:hidden@h/a/..", "no znode's path"),
            ("zookeeper://u:hidden@h/a%00", "no znode's path"),
        ] {
            let error = Settings::parse(url).unwrap_err();
            let (told, text) = (error.to_string(), format!("{error:?}"));
            assert!(error.kind() == ErrorKind::Invalid && told.contains(problem), "{url}: {told}");
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}
