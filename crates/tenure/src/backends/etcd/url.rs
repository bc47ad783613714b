//! `etcd://[USER:PASSWORD@]H1[:PORT][,H2,H3]?OPTIONS`.

use percent_encoding::percent_decode_str;
use tonic::transport::Endpoint;
#[cfg(feature = "tls")]
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::error::in_words;
#[cfg(not(feature = "tls"))]
use crate::backends::kit::no_tls::Never as ClientTlsConfig;
use crate::backends::kit::tls::{Distrust, Files, GREETING_MAX, first_bytes, misfit, speaks_tls};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::redact::{problem, redacted};

const PORT: u16 = 2379;
/// How a client of HTTP/2 begins: its preface, and settings that say nothing.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const OPTIONS: &str = "prefix, tls, ca, cert, key";

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Settings {
    /// Without a password, for messages.
    pub(super) shown: String,
    pub(super) members: Vec<Member>,
    pub(super) login: Option<Login>,
    /// Whether the client shows a certificate, which may name a user too.
    certified: bool,
    pub(super) tls: bool,
    /// Where the certificates were read.
    pub(super) files: Files,
    /// What every key begins with.
    pub(super) prefix: Vec<u8>,
}

/// Where one member is reached.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) address: String,
    pub(super) endpoint: Endpoint,
}

#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
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
        if let Some(problem) = problem(url) {
            return Err(invalid(problem.to_owned()));
        }
        let rest = url
            .strip_prefix("etcd://")
            .ok_or_else(|| invalid("has no host: write it as etcd://H1,H2,H3".to_owned()))?;
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        if !path.is_empty() {
            return Err(invalid(format!("has the path {path:?}: write ?prefix={path}/ to put it before every name")));
        }
        let login = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => None,
            Some((user, password)) if user.is_empty() || password.is_empty() => {
                return Err(invalid("has half a login: write USER:PASSWORD@".to_owned()));
            }
            Some((user, password)) => Some(Login { user: decoded(user), password: decoded(password) }),
        };
        let (mut prefix, mut tls, mut files) = (String::new(), false, Files::default());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decoded(value);
            match name {
                "prefix" => prefix = value,
                "tls" if value == "true" => tls = true,
                "tls" => return Err(invalid(format!("has tls={value}: it is true, or left out"))),
                "ca" => files.ca = Some(value),
                "cert" => files.cert = Some(value),
                "key" => files.key = Some(value),
                _ => return Err(invalid(format!("has the unknown option {name:?}: there are {OPTIONS}"))),
            }
        }
        if prefix.chars().any(char::is_control) {
            return Err(invalid("has a control character in its prefix".to_owned()));
        }
        let encryption = encryption(tls, &files).map_err(&invalid)?;
        let members: Vec<Member> = hosts
            .split(',')
            .map(|host| Member::parse(host, encryption.as_ref()).map_err(&invalid))
            .collect::<Result<_>>()?;
        let certified = files.cert.is_some();
        Ok(Self { members, login, certified, tls, files, prefix: prefix.into_bytes(), shown: shown.clone() })
    }

    /// Whether etcd may know who asks, and look at rights.
    pub(super) fn has_user(&self) -> bool {
        self.login.is_some() || self.certified
    }
}

/// How connections are encrypted, if they are.
fn encryption(tls: bool, files: &Files) -> std::result::Result<Option<ClientTlsConfig>, String> {
    if !tls {
        let problem = "has certificates but no TLS: add tls=true";
        return if files.any() { Err(problem.to_owned()) } else { Ok(None) };
    }
    secured(files).map(Some)
}

#[cfg(not(feature = "tls"))]
fn secured(_: &Files) -> std::result::Result<ClientTlsConfig, String> {
    Err(crate::backends::kit::no_tls::MISSING.to_owned())
}

#[cfg(feature = "tls")]
fn secured(files: &Files) -> std::result::Result<ClientTlsConfig, String> {
    let pem = files.read(["cert", "key"])?;
    let config = match pem.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(match pem.identity {
        Some(own) => config.identity(Identity::from_pem(own.certificate, own.key)),
        None => config,
    })
}

impl Member {
    fn parse(host: &str, tls: Option<&ClientTlsConfig>) -> std::result::Result<Self, String> {
        let bad = || "has a bad address: expected HOST[:PORT]".to_owned();
        let with_port = host.rsplit_once(':').filter(|(before, _)| !before.starts_with('[') || before.ends_with(']'));
        let (name, port) = match with_port {
            Some((name, port)) => (name, port.parse::<u16>().map_err(|_| bad())?),
            None => (host, PORT),
        };
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@".contains(&byte));
        let literal = name.starts_with('[') && name.ends_with(']');
        if !plain || (name.contains(':') && !literal) {
            return Err(bad());
        }
        let address = format!("{name}:{port}");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|_| bad())?.tcp_nodelay(true);
        #[cfg(feature = "tls")]
        let mut endpoint = endpoint;
        #[cfg(feature = "tls")]
        if let Some(tls) = tls {
            endpoint = endpoint.tls_config(tls.clone()).map_err(|error| {
                format!("has certificates that cannot be used: {}", crate::error::with_causes(&error))
            })?;
        }
        Ok(Self { address, endpoint })
    }

    /// What is wrong with the URL or the certificates, if that is why a connection failed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is asked of the member.
    pub(super) async fn misfit(&self, status: &tonic::Status) -> Option<Error> {
        let told = in_words(status);
        let server = format!("etcd at {}", self.address);
        if let Some(distrust) = Distrust::of(&told) {
            return Some(distrust.explained(&server, ["ca", "cert", "key"]).because(told));
        }
        let (host, port) = self.address.rsplit_once(':')?;
        let at = (host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?);
        if self.endpoint.uri().scheme_str() == Some("https") {
            // A server of HTTP/2 begins with its settings.
            let plain = matches!(first_bytes(at, PREFACE, GREETING_MAX).await, Some([0, 0, _, 4]));
            plain.then(|| misfit(&server, "speaks without TLS there: leave tls=true out, and ca=, cert= and key="))
        } else {
            let tls = speaks_tls(at, GREETING_MAX).await;
            tls.then(|| misfit(&server, "speaks TLS there: add tls=true, and ca=FILE if its CA is not the system's"))
        }
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_and_as_whom() {
        let settings = Settings::parse("etcd://me:p%40ss@a,b:1,[::1]:2,[::2]?prefix=%2Flocks%2F").unwrap();
        let addresses: Vec<_> = settings.members.iter().map(|member| member.address.as_str()).collect();
        assert_eq!(addresses, ["a:2379", "b:1", "[::1]:2", "[::2]:2379"]);
        assert_eq!(settings.prefix, b"/locks/");
        let login = settings.login.unwrap();
        assert_eq!((login.user.as_str(), login.password.as_str()), ("me", "p@ss"));
        assert_eq!(settings.shown, "etcd://me:***@a,b:1,[::1]:2,[::2]?prefix=%2Flocks%2F");
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, problem) in [
            ("etcd:a", "no host"),
            ("etcd://u:hidden@", "bad address"),
            ("etcd://u:hidden@a:x", "bad address"),
            ("etcd://u:hidden@a,,b", "bad address"),
            ("etcd://u:hidden@a/locks", "?prefix=locks/"),
            ("etcd://u:hidden@a?layout=plain", "unknown option"),
            ("etcd://u:hidden@a?tls=yes", "tls=yes"),
            ("etcd://u:hidden@a?ca=/x", "no TLS"),
            ("etcd://u:hidden@a?tls=true&ca=/no/such", "/no/such"),
            ("etcd://u:hidden@a?tls=true&cert=/no/such", "needs both"),
            ("etcd://u:hidden@a?prefix=%00", "control character"),
            ("etcd://hidden@a", "half a login"),
        ] {
            let error = Settings::parse(url).unwrap_err();
            let text = error.to_string();
            assert!(error.kind() == ErrorKind::Invalid && text.contains(problem), "{url}: {text}");
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}
