//! What of the OpenAPI document no route says by itself: refusals, tokens, whole numbers.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Value, json};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, Modify};

type Responses = BTreeMap<String, RefOr<Response>>;

/// Refusals of any request.
pub(crate) struct Asked;
/// Refusals of a request with a body.
pub(crate) struct Sent;
/// There is no such claim any more.
pub(crate) struct Ended;
/// Others are in the way.
pub(crate) struct Clashes;
/// A limit is reached.
pub(crate) struct TooMany;
/// The memo has another version.
pub(crate) struct Changed;
/// Nothing is kept with the name.
pub(crate) struct NoMemo;
/// There is no such thing.
pub(crate) struct Missing;

const ASKED: [(StatusCode, &str); 4] = [
    (StatusCode::BAD_REQUEST, "`field` says what is wrong"),
    (StatusCode::UNAUTHORIZED, "no token, or one that is not known"),
    (StatusCode::FORBIDDEN, "the token lacks the right, or a web page of another origin calls"),
    (StatusCode::SERVICE_UNAVAILABLE, "the store was not reached, or its answer is not known: see `certainty`"),
];
const SENT: [(StatusCode, &str); 3] = [
    (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body is not application/json"),
];

fn problems(of: &[(StatusCode, &str)]) -> Responses {
    let problem = |text: &str| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        ResponseBuilder::new().description(text).content("application/json", content).build()
    };
    of.iter().map(|(status, text)| (status.as_str().to_owned(), RefOr::T(problem(text)))).collect()
}

impl IntoResponses for Asked {
    fn responses() -> Responses {
        problems(&ASKED)
    }
}

impl IntoResponses for Sent {
    fn responses() -> Responses {
        problems(&[&ASKED[..], &SENT].concat())
    }
}

impl IntoResponses for Ended {
    fn responses() -> Responses {
        problems(&[(StatusCode::GONE, "`lost`, `gone` or `broken`: the store has no such claim any more")])
    }
}

impl IntoResponses for Clashes {
    fn responses() -> Responses {
        problems(&[(StatusCode::CONFLICT, "`busy`, `timeout`, `superseded`, `conflict`, `holds` or `not_held`")])
    }
}

impl IntoResponses for TooMany {
    fn responses() -> Responses {
        problems(&[(StatusCode::TOO_MANY_REQUESTS, "a limit is reached; see `retry-after`")])
    }
}

impl IntoResponses for Changed {
    fn responses() -> Responses {
        problems(&[(StatusCode::PRECONDITION_FAILED, "`changed`: the memo's version is not `after` but `version`")])
    }
}

impl IntoResponses for NoMemo {
    fn responses() -> Responses {
        problems(&[(StatusCode::NOT_FOUND, "`no_memo`: nothing is kept with this name")])
    }
}

impl IntoResponses for Missing {
    fn responses() -> Responses {
        problems(&[(StatusCode::NOT_FOUND, "there is no such file")])
    }
}

/// How callers say who they are.
pub(crate) struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme("bearer", scheme);
    }
}

/// The document's text.
pub(crate) fn text(document: &OpenApi) -> String {
    let mut value = serde_json::to_value(document).unwrap_or_default();
    whole_numbers(&mut value);
    serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
}

/// The generator calls unsigned numbers `int64`; a validator would then refuse the upper half of them.
fn whole_numbers(value: &mut Value) {
    if let Value::Object(fields) = value {
        let unsigned = fields.get("minimum").and_then(Value::as_u64).is_some();
        let (format, most) = match fields.get("format").and_then(Value::as_str) {
            Some("int64") if unsigned => ("uint64", u64::MAX),
            Some("int32") if unsigned => ("uint32", u64::from(u32::MAX)),
            _ => ("", 0),
        };
        if !format.is_empty() {
            fields.insert("format".to_owned(), json!(format));
            fields.entry("maximum").or_insert(json!(most));
        }
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        _ => {}
    }
}
