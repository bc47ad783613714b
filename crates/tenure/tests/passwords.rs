//! No password of any shape in anything that is shown.
#![cfg(all(
    feature = "etcd",
    feature = "http",
    feature = "postgres",
    feature = "redis",
    feature = "redlock",
    feature = "zookeeper"
))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::error::Error as _;

use proptest::prelude::*;
use tenure::{Error, ErrorKind, Tenure, redacted};

/// A part of every password.
const SECRET: &str = "Xyzzy";

const SCHEMES: [&str; 12] = [
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
    "redlock",
    "redlocks",
    "etcd",
    "zookeeper",
    "postgres",
    "postgresql",
    "http",
    "https",
];

fn password() -> impl Strategy<Value = String> {
    let any = "([a-z0-9]|[:/?#@&=%,;+ !.\\[\\]\"'~-]|tls=|%40|://){0,6}";
    (any, any).prop_map(|(before, after)| format!("{before}{SECRET}{after}"))
}

/// URLs with a password in every place that one is written to. None can be used, so nothing is ever connected to.
fn urls(scheme: &str, password: &str) -> Vec<String> {
    let encoded: String = format!("postgres://u:{password}@h/d").bytes().map(|byte| format!("%{byte:02X}")).collect();
    vec![
        format!("{scheme}://user:{password}@host/0?colour=red"),
        format!("{scheme}://:{password}@host?colour=red"),
        format!("{scheme}://user:{password}@h1:1,h2,[::1]:3/a/b?colour=red"),
        format!("{scheme}://u:x@h1,u:{password}@h2,h3/0?colour=red"),
        format!("{scheme}://user:{password}@host:port/0"),
        format!("{scheme}://host/0?colour=red&password={password}"),
        format!("{scheme}://host/0?colour=red&sentinel_password={password}"),
        format!("{scheme}://host/0?colour=red&sentinel_password={password}&tls=maybe"),
        format!("{scheme}://host/0?password={password}&colour=red"),
        format!("{scheme}://host/0?listen={encoded}&colour=red"),
        format!("{scheme}:/user:{password}@host/0"),
        format!("{scheme}//user:{password}@host/0"),
        format!("user:{password}@host/0"),
        format!("nosuch://user:{password}@host/0"),
    ]
}

fn shown(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(" {next} {next:?}"));
        cause = next.source();
    }
    text
}

fn check(url: &str) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let builder = Tenure::builder(url);
    let built = format!("{builder:?}");
    let (connected, examined) = runtime.block_on(async { (builder.connect().await, tenure::examine(url).await) });
    let (connected, examined) = (connected.unwrap_err(), examined.unwrap_err());
    for error in [&connected, &examined] {
        prop_assert_eq!(error.kind(), ErrorKind::Invalid, "{} {}", url, error);
    }
    for text in [redacted(url), built, shown(&connected), shown(&examined)] {
        prop_assert!(!text.contains(SECRET), "{} is shown as {}", url, text);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn no_password_is_shown_by_any_error_or_debug_output(password in password()) {
        for scheme in SCHEMES {
            for url in urls(scheme, &password) {
                check(&url)?;
            }
        }
    }
}

#[test]
fn an_error_says_what_to_write() {
    for (url, hint) in [
        ("redis://app:x?k=v&Xyzzy@host/0", "? as %3F"),
        ("postgres://u:a?Xyzzy=9@host/d", "? as %3F"),
        ("etcd://u:a/Xyzzy@host", "/ as %2F"),
        ("zookeeper://u:a#Xyzzy@host", "# as %23"),
        ("redis://u:a@Xyzzy@host", "@ as %40"),
        ("redis+sentinel://h/s?sentinel_password=a&Xyzzy", "& as %26"),
    ] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(Tenure::connect(url)).unwrap_err();
        assert!(error.to_string().contains(hint), "{error}");
        check(url).unwrap();
    }
}
