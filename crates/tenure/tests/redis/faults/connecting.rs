//! Addresses where no Redis is, or not the one that was meant.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use tenure::{Certainty, Error, ErrorKind, Step, Tenure};
use tenure_testkit::servers::{Redis, Sentinel};

use crate::support::{Server, builder, old_server, patiently};

async fn refused(address: &str) -> Error {
    let error = patiently("an answer", Tenure::connect(format!("redis://u:secret@{address}"))).await.unwrap_err();
    told(&error);
    error
}

fn told(error: &Error) {
    assert_eq!((error.certainty(), error.step()), (Certainty::NotApplied, Some(Step::Connect)), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

/// Something that listens and does as it is told with each connection.
fn listening(mut serve: impl FnMut(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().for_each(|stream| serve(stream.unwrap())));
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = refused(&address).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.to_string().contains(&address), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_says_nothing() {
    let mut kept = Vec::new();
    let error = refused(&listening(move |stream| kept.push(stream))).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_closes_the_door() {
    let error = refused(&listening(drop)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_speaks_something_else() {
    let answers: [&[u8]; 4] = [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"\x00\x01\x02\x03\xff\xfe\r\n\r\n",
        b"-ERR I am a teapot\r\n-ERR I am a teapot\r\n-ERR I am a teapot\r\n",
        b"*1000000000\r\n$1000000000\r\n",
    ];
    for answer in answers {
        let mut kept = Vec::new();
        let address = listening(move |mut stream| {
            // A server that answers before it was asked would be another fault.
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(answer);
            kept.push(stream);
        });
        let error = refused(&address).await;
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Store | ErrorKind::Denied), "{error:?}");
        let plain = Tenure::connect(format!("redis://{address}"));
        told(&patiently("an answer", plain).await.unwrap_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_no_place_for_locks() {
    let sentinels = Sentinel::start();
    let address = sentinels.sentinels()[0].address();
    let error = patiently("an answer", Tenure::connect(format!("redis://{address}"))).await.unwrap_err();
    told(&error);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_and_a_lone_server_are_not_mistaken_for_each_other() {
    let node = Redis::builder().config("cluster-enabled", "yes").start();
    let error = patiently("an answer", Tenure::connect(node.url())).await.unwrap_err();
    told(&error);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
    let server = Server::start();
    let url = format!("redis+cluster://{}", server.address());
    let error = patiently("an answer", Tenure::connect(url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_old_is_refused() {
    let server = Redis::builder().program(old_server("older")).start();
    let error = patiently("an answer", Tenure::connect(server.url())).await.unwrap_err();
    told(&error);
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.to_string().contains("too old") && error.to_string().contains("6.2"), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_there_is_not_is_an_error() {
    let server = Server::of(builder().config("databases", "2"));
    let error = patiently("an answer", Tenure::connect(format!("{}/7", server.url()))).await.unwrap_err();
    told(&error);
    assert!(!matches!(error.kind(), ErrorKind::Denied), "{error}");
    let client = Tenure::connect(format!("{}/1", server.url())).await.unwrap();
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
}
