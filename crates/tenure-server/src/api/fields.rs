//! Reading what a request says: every field by its name, and nothing that is not known.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tenure::Name;

use crate::limits::ARRIVAL_MAX;
use crate::problem::{Answer, Problem};

/// Reads a body of JSON.
///
/// # Cancel safety
///
/// Cancel safe: nothing was done yet.
pub(crate) async fn body<T: DeserializeOwned>(request: Request, bytes_max: usize) -> Answer<T> {
    is_json(request.headers())?;
    let arrival = tokio::time::timeout(ARRIVAL_MAX, Limited::new(request.into_body(), bytes_max).collect());
    let bytes = match arrival.await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("the body is larger than {bytes_max} bytes");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
        }
        Ok(Err(_)) => return Err(Problem::new(StatusCode::BAD_REQUEST, "invalid", "the body did not arrive whole")),
        Err(_) => {
            let message = format!("the body has not arrived within {} s", ARRIVAL_MAX.as_secs());
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", message));
        }
    };
    json(&bytes)
}

/// Only JSON is read: a browser sends a form to another origin without asking, but not `application/json`.
fn is_json(headers: &HeaderMap) -> Answer<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = if kind.is_empty() { "the body has no type".to_owned() } else { format!("the body is {kind:?}") };
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported", message)
        .hint("send content-type: application/json; with curl: --json '{…}'"))
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    // An array would be read as the fields in their order, and nobody could tell which is missing.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(Problem::field("body", "the body is no JSON object"));
    }
    let mut input = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut input).map_err(|error| refused("body", &error))?;
    input.end().map_err(|_| Problem::field("body", "there is more after the JSON object"))?;
    Ok(value)
}

/// Reads what follows the question mark.
pub(crate) fn query<T: DeserializeOwned>(request: &Request) -> Answer<T> {
    let text = request.uri().query().unwrap_or_default();
    // Whatever is no text would become a question mark below, and another name.
    for pair in text.split('&') {
        let (field, value) = pair.split_once('=').unwrap_or((pair, ""));
        decoded("query", field)?;
        decoded(field, value)?;
    }
    let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(text.as_bytes()));
    serde_path_to_error::deserialize(pairs).map_err(|error| refused("query", &error))
}

/// Names the field: by the path to it, or as the message quotes it.
fn refused<E: std::fmt::Display>(whole: &str, error: &serde_path_to_error::Error<E>) -> Problem {
    let message = error.inner().to_string();
    let path = error.path().to_string();
    let quoted = || message.split('`').nth(1).map(str::to_owned);
    let names_field = ["missing field", "unknown field", "duplicate field"].iter().any(|what| message.contains(what));
    let field = match path.as_str() {
        // A question mark stands for a key that had not come to its end.
        "." | "?" => quoted().filter(|_| names_field).unwrap_or_else(|| whole.to_owned()),
        path if names_field => format!("{path}.{}", quoted().unwrap_or_default()),
        path => path.to_owned(),
    };
    // Unknown fields stand in the path where they were met.
    let field = match (message.contains("unknown field"), quoted()) {
        (true, Some(name)) if field.ends_with(&format!("{name}.{name}")) => {
            field.strip_suffix(&format!(".{name}")).unwrap_or(&field).to_owned()
        }
        _ => field,
    };
    let message = plain(&field, &message);
    Problem::field(field, format!("{whole}: {message}"))
}

/// What serde says, in words for those who do not know Rust.
fn plain(field: &str, message: &str) -> String {
    let message = message.split_once(" at line ").map_or(message, |(message, _)| message);
    let number = if field.ends_with("_ms") { "a whole number of milliseconds" } else { "a whole number" };
    let words = [("u64", number), ("u32", number), ("usize", number), ("a sequence", "an array")];
    for (theirs, ours) in words {
        if let Some(before) = message.strip_suffix(&format!("expected {theirs}")) {
            return format!("{before}expected {ours}");
        }
    }
    message.to_owned()
}

/// The name in `/v1/locks/{name}/…`: one percent-encoded segment, decoded once.
pub(crate) fn name_in_path(request: &Request) -> Answer<Name> {
    let segment = request.uri().path().split('/').nth(3).unwrap_or_default();
    name(&decoded("name", segment)?)
}

/// What a part of a URL says, if it is valid percent-encoding of UTF-8.
fn decoded<'a>(field: &str, text: &'a str) -> Answer<Cow<'a, str>> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('%') {
        if !after.bytes().take(2).filter(u8::is_ascii_hexdigit).count().eq(&2) {
            return Err(Problem::field(field, format!("{text:?} is not valid percent-encoding")));
        }
        rest = after;
    }
    percent_decode_str(text).decode_utf8().map_err(|_| Problem::field(field, format!("{text:?} is not UTF-8")))
}

/// A name from elsewhere.
pub(crate) fn name(text: &str) -> Answer<Name> {
    Name::new(text).map_err(|error| Problem::field("name", error.to_string()))
}

/// A time in milliseconds within limits.
pub(crate) fn within(field: &str, millis: u64, min: Duration, max: Duration) -> Answer<Duration> {
    let duration = Duration::from_millis(millis);
    if (min..=max).contains(&duration) {
        return Ok(duration);
    }
    let message = format!("{field} is {millis}: {} to {} ms", min.as_millis(), max.as_millis());
    Err(Problem::field(field, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Ask {
        ttl_ms: u64,
        #[serde(default)]
        locks: Vec<One>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct One {
        name: String,
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, field) in [
            (r#"{"ttl_ms":-1}"#, "ttl_ms"),
            (r#"{"ttl_ms":"1"}"#, "ttl_ms"),
            (r#"{"ttl_ms":1.5}"#, "ttl_ms"),
            (r#"{"ttl_ms":99999999999999999999}"#, "ttl_ms"),
            (r"{}", "ttl_ms"),
            (r#"{"ttl_ms":1,"tll_ms":2}"#, "tll_ms"),
            (r#"{"ttl_ms":1,"ttl_ms":2}"#, "ttl_ms"),
            (r#"{"ttl_ms":1,"locks":[{"name":1}]}"#, "locks[0].name"),
            (r#"{"ttl_ms":1,"locks":[{"name":"a"},{}]}"#, "locks[1].name"),
            (r#"{"ttl_ms":1,"locks":[{"name":"a","nom":1}]}"#, "locks[0].nom"),
            ("", "body"),
            ("[]", "body"),
            ("{", "body"),
            (r#"{"ttl_ms":1} x"#, "body"),
        ] {
            let problem = serde_json::to_value(json::<Ask>(text.as_bytes()).unwrap_err()).unwrap();
            assert_eq!(problem["field"], field, "{text}: {problem}");
        }
    }

    #[test]
    fn a_name_in_a_path_is_one_segment_decoded_once() {
        let name = |path: &str| {
            let request = Request::builder().uri(format!("/v1/locks/{path}/acquire")).body(Body::empty()).unwrap();
            name_in_path(&request).map(|name| name.as_str().to_owned()).ok()
        };
        assert_eq!(name("orders%2F42").as_deref(), Some("orders/42"));
        assert_eq!(name("a%252Fb").as_deref(), Some("a%2Fb"));
        assert_eq!(name("%2E%2E").as_deref(), Some(".."));
        assert_eq!(name("a+b").as_deref(), Some("a+b"));
        for bad in ["%", "%2", "a%zz", "%00", "%ff", "%0A", ""] {
            assert_eq!(name(bad), None, "{bad}");
        }
        assert_eq!(name(&"a".repeat(513)), None);
    }
}
