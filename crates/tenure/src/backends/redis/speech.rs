//! What a server speaks that cannot be talked to: TLS where the URL says that it does not, or the other way round.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::url::{Address, Settings};
use crate::error::{Error, ErrorKind};

/// How long one that speaks may take to say its first word.
const PATIENCE: Duration = Duration::from_millis(500);

/// The shortest greeting of TLS 1.2 that a server answers, if only to refuse it.
const CLIENT_HELLO: [u8; 50] = {
    let mut hello = [0; 50];
    // A record (handshake, 45 bytes) with a message (client hello, 41 bytes) of version 1.2; its random part may be
    // zero.
    let (head, tail) = ([0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3], [0, 0, 2, 0xc0, 0x2f, 1, 0]);
    let mut at = 0;
    while at < head.len() {
        hello[at] = head[at];
        at += 1;
    }
    at = 0;
    while at < tail.len() {
        hello[43 + at] = tail[at];
        at += 1;
    }
    hello
};

/// What to write instead, if the server speaks what the URL does not say. Nothing, where it is not sure.
///
/// # Cancel safety
///
/// Cancel safe: nothing is asked of the server.
pub(super) async fn advice(settings: &Settings, address: &Address) -> Option<Error> {
    let (greeting, says_tls): (&[u8], bool) =
        if settings.tls.is_some() { (b"PING\r\n", false) } else { (&CLIENT_HELLO, true) };
    let answer = timeout(PATIENCE, greet(address, greeting)).await.ok()?.ok()?;
    let advice = match (says_tls, answer) {
        (false, [b'+' | b'-', _]) => "it speaks without TLS there: write redis:// (redlock://, or leave tls=true out)",
        (true, [0x15 | 0x16, 3]) => "it speaks TLS there: write rediss:// (redlocks://, or add tls=true)",
        _ => return None,
    };
    Some(Error::new(ErrorKind::Invalid, format!("cannot talk to Redis at {address}: {advice}")))
}

/// The first bytes of the answer.
async fn greet(address: &Address, greeting: &[u8]) -> std::io::Result<[u8; 2]> {
    let mut stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.write_all(greeting).await?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}
