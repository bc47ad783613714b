//! URLs without their passwords, and URLs that are refused because nobody can tell where the password ends.

/// What stands where something is hidden.
const HIDDEN: &str = "***";

/// A URL without its password, for messages. Of a URL that cannot be taken apart for sure, only the scheme is left.
///
/// ```
/// assert_eq!(tenure::redacted("redis://user:secret@host/0"), "redis://user:***@host/0");
/// assert_eq!(tenure::redacted("redis://user:sec/ret@host/0"), "redis://***");
/// ```
pub fn redacted(url: &str) -> String {
    let Some(parts) = Parts::of(url) else { return without_scheme(url) };
    let scheme = parts.scheme;
    if parts.problem().is_some() && parts.has_stray_at() {
        return format!("{scheme}://{HIDDEN}");
    }
    let login = match parts.login.map(|login| login.split_once(':').ok_or(login)) {
        None => String::new(),
        Some(Ok((user, _))) => format!("{user}:{HIDDEN}@"),
        // Elsewhere a user without a password is refused, and may be the password.
        Some(Err(user)) if scheme.starts_with("postgres") => format!("{user}@"),
        Some(Err(_)) => format!("{HIDDEN}@"),
    };
    match hosts(parts.hosts) {
        Ok(hosts) => format!("{scheme}://{login}{hosts}{}{}", parts.path, options(parts.options)),
        Err(known) => format!("{scheme}://{login}{known}{HIDDEN}"),
    }
}

/// What is wrong with where a server's URL has its passwords: nobody can tell which part is secret, so no part of it
/// may be shown or acted on. Stores ask this before anything else.
#[cfg_attr(
    not(any(feature = "redis", feature = "redlock", feature = "etcd", feature = "postgres", feature = "zookeeper")),
    allow(dead_code, reason = "no store has a URL with a password")
)]
pub(crate) fn problem(url: &str) -> Option<&'static str> {
    Parts::of(url)?.problem()
}

/// A URL that names a server, as RFC 3986 takes it apart.
struct Parts<'a> {
    scheme: &'a str,
    /// What stands before the last `@` of the authority.
    login: Option<&'a str>,
    hosts: &'a str,
    /// From the first `/` or `#` behind the hosts.
    path: &'a str,
    /// From the first `?` behind the hosts.
    options: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| is_scheme(scheme))?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (login, hosts) = authority.rsplit_once('@').map_or((None, authority), |(login, rest)| (Some(login), rest));
        let (path, options) = tail.split_once('?').map_or((tail, None), |(path, options)| (path, Some(options)));
        Some(Self { scheme, login, hosts, path, options })
    }

    fn problem(&self) -> Option<&'static str> {
        if self.has_at_in_tail() {
            return Some(
                "has an @ behind a /, ? or #: in a user, a password or an option write / as %2F, ? as %3F, # as %23 \
                 and @ as %40",
            );
        }
        if self.has_stray_at() {
            return Some("has more than one @: a login is written once, before the first host, with @ as %40");
        }
        let mut names = self.options.unwrap_or_default().split('&').map(|option| option.split('=').next());
        let is_followed = names.any(|name| name.is_some_and(is_password)) && names.next().is_some();
        is_followed.then_some("has an option behind one with a password: put that last, and write & as %26 in it")
    }

    /// Whether there is an `@` besides the one that ends the login.
    fn has_stray_at(&self) -> bool {
        self.has_at_in_tail() || self.login.is_some_and(|login| login.contains('@'))
    }

    fn has_at_in_tail(&self) -> bool {
        self.path.contains('@') || self.options.is_some_and(|options| options.contains('@'))
    }
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte))
}

/// Addresses as they stand. `Err` with those before the first one that is none: half a password, say.
fn hosts(text: &str) -> Result<&str, &str> {
    let mut known = 0;
    for host in text.split(',') {
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        let literal = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (is_name, port) = match literal {
            Some((address, port)) => {
                (address.bytes().all(|b| b.is_ascii_hexdigit() || b":.%".contains(&b)), port.strip_prefix(':'))
            }
            None => (true, host.split_once(':').map(|(_, port)| port)),
        };
        let is_port = port.is_none_or(|port| !name.is_empty() && (port.is_empty() || port.parse::<u16>().is_ok()));
        if !is_name || !is_port {
            let shown = if literal.is_some() { 0 } else { (name.len() + 1).min(host.len()) };
            return Err(text.get(..known + shown).unwrap_or_default());
        }
        known += host.len() + 1;
    }
    Ok(text)
}

/// Options without what is secret in them. Behind a password stands nothing, or more of it.
fn options(options: Option<&str>) -> String {
    let mut shown = String::new();
    for option in options.into_iter().flat_map(|options| options.split('&')) {
        shown.push(if shown.is_empty() { '?' } else { '&' });
        let Some((name, value)) = option.split_once('=') else {
            shown.push_str(option);
            continue;
        };
        shown.push_str(name);
        shown.push('=');
        shown.push_str(if is_shown(name, value) { value } else { HIDDEN });
        if is_password(name) {
            break;
        }
    }
    shown
}

fn is_shown(name: &str, value: &str) -> bool {
    match name {
        // How one logs in, not with what.
        "auth" if matches!(value, "digest" | "sasl") => true,
        // An address, or a URL that may have a password anywhere.
        "listen" => hosts(value).is_ok() && !value.contains(['/', '?', '#', '@', '=', '%']),
        _ => !is_secret(name) && !value.contains('@') && !value.contains("%40"),
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    is_password(&name) || name.contains("auth") || name.contains("key")
}

fn is_password(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "pwd", "secret", "token"].iter().any(|word| name.contains(word))
}

/// What is no URL of a server may have been meant as one: it is shown if there is no place for a password in it.
fn without_scheme(text: &str) -> String {
    let is_local = text.starts_with("sqlite:") || text.starts_with("memory:");
    let is_plain = !text.contains(['@', '?', '#', '=', ' ']) && text.matches(':').count() < 2;
    if is_local || is_plain {
        return text.to_owned();
    }
    match text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) {
        Some((scheme, _)) => format!("{scheme}:{HIDDEN}"),
        None => HIDDEN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        for (url, shown) in [
            ("redis://:secret@host:6379", "redis://:***@host:6379"),
            ("redis://user:se:cret@host,other/0?x=y", "redis://user:***@host,other/0?x=y"),
            ("redis://user:se:c@ret@host,other/0?x=y", "redis://***"),
            ("redis://user:se/cret@host", "redis://***"),
            ("redis://u:a?b@host", "redis://***"),
            ("redis://u:a#b@host", "redis://***"),
            ("redis://app:x?k=v&secret@host/0", "redis://***"),
            ("postgres://u:a?secret=9@host/d", "postgres://***"),
            ("postgres://h/db?password=abc@def&pwd=x", "postgres://***"),
            ("postgres://h/db?x=y&password=s3cret", "postgres://h/db?x=y&password=***"),
            ("postgres://h/db?password=s3&cret=x", "postgres://h/db?password=***"),
            ("postgres://h/db?listen=postgres%3A%2F%2Fu%3Asecret%40h2%2Fdb&x=y", "postgres://h/db?listen=***&x=y"),
            ("postgres://h/db?listen=postgres%3A%2F%2Fh2%2F%3Fpassword%3Dsecret", "postgres://h/db?listen=***"),
            ("postgres://h/db?listen=h2:5432", "postgres://h/db?listen=h2:5432"),
            ("postgres://user@h/db", "postgres://user@h/db"),
            ("zookeeper://u:p@h/x?auth=sasl", "zookeeper://u:***@h/x?auth=sasl"),
            ("redis://h?auth=hidden", "redis://h?auth=***"),
            ("redis://secret@host", "redis://***@host"),
            ("redlock://u:secret@h1:1,h2:2/0?layout=plain", "redlock://u:***@h1:1,h2:2/0?layout=plain"),
            ("redlocks://:se,cret@h1,h2,h3", "redlocks://:***@h1,h2,h3"),
            ("redlock://u:p1@h1,u:p2@h2,u:p3@h3", "redlock://***"),
            ("redis://host", "redis://host"),
            ("redis://host:6379,[::1]:7,[::2]/0", "redis://host:6379,[::1]:7,[::2]/0"),
            ("redis://:secret", "redis://:***"),
            ("redis://user:secret/0", "redis://user:***"),
            ("redis://user:se/cret", "redis://user:***"),
            ("redis://user:secret:6379", "redis://user:***"),
            ("redis://a:1,user:secret", "redis://a:1,user:***"),
            ("redis+sentinel://h:1,i:2/s?sentinel_password=abc", "redis+sentinel://h:1,i:2/s?sentinel_password=***"),
            ("etcd://h?prefix=%2Flocks%2F", "etcd://h?prefix=%2Flocks%2F"),
            ("postgres:/u:secret@h/app", "postgres:***"),
            ("postgres//u:secret@h/app", "***"),
            ("u:secret@h", "u:***"),
            ("u:x://secret@h", "u:***"),
            ("secret@h:6379", "***"),
            ("host=h password=secret user=u", "***"),
            ("redis:/u:secret", "redis:***"),
            ("localhost:6379", "localhost:6379"),
            ("redis:thing", "redis:thing"),
            ("locks.db", "locks.db"),
            ("sqlite:/a:b@c.db", "sqlite:/a:b@c.db"),
        ] {
            assert_eq!(redacted(url), shown, "{url}");
        }
    }

    #[test]
    fn what_cannot_be_taken_apart_says_what_to_write() {
        for (url, hint) in [
            ("redis://u:a/b@h", "%2F"),
            ("redis://u:a?b@h", "%3F"),
            ("redis://u:a#b@h", "%23"),
            ("redis://h/0?x=a@b", "%40"),
            ("redis://u:a@b@h", "%40"),
            ("redlock://u:a@h1,u:a@h2", "once"),
            ("redis+sentinel://h/s?sentinel_password=a&b", "%26"),
        ] {
            assert!(problem(url).is_some_and(|problem| problem.contains(hint)), "{url}");
        }
        for url in
            ["redis://h", "redis://u:a%40b@h/0?layout=plain", "postgres://u@h/d?sslmode=x&password=y", "sqlite:a@b"]
        {
            assert_eq!(problem(url), None, "{url}");
        }
    }
}
