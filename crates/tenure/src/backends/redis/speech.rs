//! What a server speaks that cannot be talked to: TLS where the URL says that it does not, or the other way round.

use super::url::{Address, Settings};
use crate::backends::kit::tls::{GREETING_MAX, first_bytes, speaks_tls};
use crate::error::{Error, ErrorKind};

/// What to write instead, if the server speaks what the URL does not say. Nothing, where it is not sure.
///
/// # Cancel safety
///
/// Cancel safe: nothing is asked of the server.
pub(super) async fn advice(settings: &Settings, address: &Address) -> Option<Error> {
    let at = (address.host.as_str(), address.port);
    let advice = if settings.tls.is_some() {
        let answer = first_bytes(at, b"PING\r\n", GREETING_MAX).await;
        matches!(answer, Some([b'+' | b'-']))
            .then_some("it speaks without TLS there: write redis:// (redlock://, or leave tls=true out)")
    } else {
        let tls = speaks_tls(at, GREETING_MAX).await;
        tls.then_some("it speaks TLS there: write rediss:// (redlocks://, or add tls=true)")
    };
    Some(Error::new(ErrorKind::Invalid, format!("cannot talk to Redis at {address}: {}", advice?)))
}
