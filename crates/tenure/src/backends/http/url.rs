//! `http://[:TOKEN@]H1[:PORT][,H2,H3]?OPTIONS`, and `https://`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::backends::kit::tls::Files;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::redact::{problem, redacted};

const PORT: u16 = 7420;
const OPTIONS: &str = "ca, cert, key";
/// The token, where the URL has none.
const BEARER: &str = "TENURE_BEARER";
/// What need not be written as a number in a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Settings {
    /// Without a password, for messages.
    pub(super) shown: String,
    pub(super) tls: bool,
    /// `HOST:PORT` of each instance.
    pub(super) hosts: Vec<String>,
    pub(super) bearer: Option<String>,
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    pub(super) files: Files,
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let shown = redacted(url);
        let invalid =
            |problem: String| Error::new(ErrorKind::Invalid, format!("{shown:?} {problem}")).at(Step::Connect);
        if let Some(problem) = problem(url) {
            return Err(invalid(problem.to_owned()));
        }
        let (tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(invalid("has no host: write it as http://HOST or https://HOST".to_owned())),
        };
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        if !path.is_empty() {
            return Err(invalid(format!("has the path {path:?}: a service has none")));
        }
        let bearer = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => std::env::var(BEARER).ok().filter(|bearer| !bearer.is_empty()),
            Some((_, "")) => return Err(invalid("has a user and no token: write :TOKEN@ before the host".to_owned())),
            Some((_, token)) => Some(decoded(token)),
        };
        if bearer.as_ref().is_some_and(|bearer| !bearer.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(invalid("has a token that cannot be one: it is visible ASCII characters".to_owned()));
        }
        let mut files = Files::default();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decoded(value);
            match name {
                "ca" => files.ca = Some(value),
                "cert" => files.cert = Some(value),
                "key" => files.key = Some(value),
                _ => return Err(invalid(format!("has the unknown option {name:?}: there are {OPTIONS}"))),
            }
        }
        if !tls && files.any() {
            return Err(invalid("has certificates but no TLS: write https://".to_owned()));
        }
        let hosts = hosts.split(',').map(host).collect::<Option<Vec<_>>>();
        let hosts = hosts.ok_or_else(|| invalid("has a bad address: expected HOST[:PORT]".to_owned()))?;
        Ok(Self { shown: shown.clone(), tls, hosts, bearer, files })
    }
}

fn host(text: &str) -> Option<String> {
    let with_port = text.rsplit_once(':').filter(|(before, _)| !before.starts_with('[') || before.ends_with(']'));
    let (name, port) = match with_port {
        Some((name, port)) => (name, port.parse::<u16>().ok()?),
        None => (text, PORT),
    };
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@".contains(&byte));
    let literal = name.starts_with('[') && name.ends_with(']');
    (plain && (literal || !name.contains(':'))).then(|| format!("{name}:{port}"))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// A path with a query.
pub(super) struct Query(String);

impl Query {
    pub(super) fn new(path: &str) -> Self {
        Self(path.to_owned())
    }

    pub(super) fn with(mut self, key: &str, value: &str) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(key);
        self.0.push('=');
        self.0.extend(utf8_percent_encode(value, PLAIN));
        self
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_instances_and_a_token() {
        let settings = Settings::parse("https://:s%25x@a,b:1,[::1]:2").unwrap();
        assert_eq!(settings.hosts, ["a:7420", "b:1", "[::1]:2"]);
        assert_eq!((settings.tls, settings.bearer.as_deref()), (true, Some("s%x")));
        assert!(!settings.shown.contains("s%"), "{}", settings.shown);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_write() {
        for (url, said) in [
            ("http://", "bad address"),
            ("http:x", "has no host"),
            ("http://a/b", "has the path"),
            ("http://user@a", "no token"),
            ("http://a?x=1", "unknown option"),
            ("http://a?ca=x", "https://"),
            ("http://a:99999", "bad address"),
            ("http://:a%20b@h", "visible ASCII"),
        ] {
            let error = Settings::parse(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(said), "{url}: {error:?} should say {said:?}");
        }
    }

    #[test]
    fn whatever_a_name_holds_is_one_value() {
        assert_eq!(
            Query::new("/x").with("name", "a&b=c d/é").with("n", "1").as_str(),
            "/x?name=a%26b%3Dc%20d%2F%C3%A9&n=1"
        );
    }
}
