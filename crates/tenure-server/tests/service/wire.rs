//! What is not HTTP, or only nearly: it is refused, the connection is closed, and nothing is done.

use serde_json::json;

use crate::support::{PATIENCE, instance, memory, wish};
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_refused_and_the_connection_is_closed() {
    let at = instance(&memory().await).await;
    let body = wish("x", "o", 60_000).to_string();
    let length = body.len();
    let post = "POST /v1/acquire HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n";
    let chunk = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let garbage: Vec<Vec<u8>> = vec![
        b"\r\n\r\n\r\nnonsense\r\n\r\n".to_vec(),
        b"\0\0\0\0\0\0\0\0\r\n\r\n".to_vec(),
        vec![0xff; 4_096],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is how TLS begins\r\n\r\n".to_vec(),
        b"GET /healthz\r\n\r\n".to_vec(),
        b"GET /healthz HTTP/9.9\r\nhost: 127.0.0.1\r\n\r\n".to_vec(),
        b"GET  /healthz  HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".to_vec(),
        b"GET /healthz HTTP/1.1\r\nhost 127.0.0.1\r\n\r\n".to_vec(),
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: a\0b\r\n\r\n".to_vec(),
        b"GET /healthz HTTP/1.1\r\n: nothing\r\n\r\n".to_vec(),
        // How long a body is cannot be told in two ways: what comes after it would be another request to somebody else.
        format!("{post}content-length: {length}\r\ncontent-length: {}\r\n\r\n{body}", length + 1).into_bytes(),
        format!("{post}content-length: -1\r\n\r\n{body}").into_bytes(),
        format!("{post}content-length: 99999999999999999999999\r\n\r\n{body}").into_bytes(),
        format!("{post}transfer-encoding: chunked, identity\r\n\r\n{chunk}").into_bytes(),
        format!("{post}transfer-encoding: chunked\r\n\r\nzz\r\n{body}\r\n0\r\n\r\n").into_bytes(),
        format!("{post}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{body}").into_bytes(),
        // HTTP/2 that goes wrong after its first words.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand then nothing that makes sense, for long enough".to_vec(),
    ];
    for sent in garbage {
        let shown = String::from_utf8_lossy(&sent).into_owned();
        let mut connection = at.open().await;
        connection.send(&sent).await;
        timeout(PATIENCE, connection.is_closed()).await.unwrap_or_else(|_| panic!("it was not closed: {shown:?}"));
        let told = connection.unread();
        assert!(!told.starts_with(b"HTTP/1.1 2"), "{shown:?} was served: {}", String::from_utf8_lossy(&told));
    }
    assert_eq!(at.get("/v1/locks").await.is(200).json(), json!([]), "nothing was acquired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_with_two_lengths_is_not_the_beginning_of_another_request() {
    let at = instance(&memory().await).await;
    let body = wish("x", "o", 60_000).to_string();
    // One who goes by the length sees one request here, one who goes by the chunks sees two.
    let hidden = at.request("POST", "/v1/acquire", Some(&wish("hidden", "o", 60_000).to_string()));
    let content = format!("{:x}\r\n{body}\r\n0\r\n\r\n{hidden}", body.len());
    let both = format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\
        content-length: {}\r\n\r\n{content}",
        content.len()
    );
    let mut connection = at.open().await;
    connection.send(both.as_bytes()).await;
    let _ = connection.try_reply().await;
    timeout(PATIENCE, connection.is_closed()).await.expect("the connection is closed");
    assert_eq!(at.show("hidden").await["holders"], json!([]), "what was hidden was not served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_no_text_has_the_shape_of_all_problems() {
    let at = instance(&memory().await).await;
    for path in ["/assets/%FF", "/assets/%00", "/assets/..%2Fapp.js", "/assets/", "/assets/none.js", "/%FF"] {
        at.get(path).await.tells_problem(404, "not_found");
    }
    for path in ["/v1/locks/%FF", "/v1/lock?name=%FF", "/v1/locks/%FF/explain", "/v1/locks?prefix=%FF"] {
        at.get(path).await.tells_problem(400, "invalid");
    }
    at.get("/assets/app.js").await.is(200);
}
