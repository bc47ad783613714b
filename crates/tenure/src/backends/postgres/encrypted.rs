//! TLS for connections to PostgreSQL, with channel binding: a password is of no use to whoever stands in between.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{self, ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Makes connections that are encrypted.
pub(super) struct Encrypted(pub(super) Arc<ClientConfig>);

/// Makes one to this host.
pub(super) struct To {
    config: Arc<ClientConfig>,
    host: String,
}

/// A connection that is encrypted.
pub(super) struct Stream<S>(TlsStream<S>);

type Connecting<S> = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Encrypted {
    type Stream = Stream<S>;
    type TlsConnect = To;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<To, Infallible> {
        Ok(To { config: self.0.clone(), host: host.to_owned() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for To {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Connecting<S>;

    fn connect(self, stream: S) -> Connecting<S> {
        Box::pin(async move {
            let name =
                ServerName::try_from(self.host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            TlsConnector::from(self.config).connect(name, stream).await.map(Stream)
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> tls::TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let certificate = self.0.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let hash = certificate.and_then(|certificate| end_point(certificate));
        hash.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// `tls-server-end-point` of RFC 5929: the certificate's hash, by the hash function of its signature, and by SHA-256
/// where that is MD5 or SHA-1. None for signatures that have no hash function of their own, such as Ed25519.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA: [u8; 6] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
    let algorithm = signature_algorithm(certificate)?;
    let rsa = algorithm.strip_prefix(&RSA[..]);
    let ecdsa = algorithm.strip_prefix(&ECDSA[..]);
    Some(match (rsa, ecdsa) {
        (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => Sha256::digest(certificate).to_vec(),
        (Some([12]), _) | (_, Some([3, 3])) => Sha384::digest(certificate).to_vec(),
        (Some([13]), _) | (_, Some([3, 4])) => Sha512::digest(certificate).to_vec(),
        _ => return None,
    })
}

/// The object identifier by which a certificate (DER) names how it was signed.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const IDENTIFIER: u8 = 0x06;
    let (whole, _) = element(SEQUENCE, certificate)?;
    let (_, after_the_signed_part) = element(SEQUENCE, whole)?;
    let (algorithm, _) = element(SEQUENCE, after_the_signed_part)?;
    element(IDENTIFIER, algorithm).map(|(identifier, _)| identifier)
}

/// The content of the element of DER at the front, if it has this tag, and what follows it.
fn element(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // So many bytes tell the length.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    (found == tag).then_some(())?;
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate signed like this, of which nothing else is of interest.
    fn signed_by(algorithm: &[u8]) -> Vec<u8> {
        let element = |tag: u8, content: &[u8]| {
            let mut bytes = vec![tag, 0x82];
            bytes.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
            bytes.extend(content);
            bytes
        };
        let short = [&[0x06, algorithm.len() as u8][..], algorithm, &[5, 0]].concat();
        element(0x30, &[element(0x30, &[7; 300]), element(0x30, &short), vec![3, 1, 0]].concat())
    }

    #[test]
    fn a_certificate_is_hashed_as_it_was_signed() {
        for (algorithm, bytes) in [
            (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 5][..], Some(32)),
            (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 11], Some(32)),
            (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 12], Some(48)),
            (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 13], Some(64)),
            (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 3, 2], Some(32)),
            (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 3, 3], Some(48)),
            (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 3, 4], Some(64)),
            // Ed25519.
            (&[0x2b, 0x65, 0x70], None),
            (&[], None),
        ] {
            let hash = end_point(&signed_by(algorithm));
            assert_eq!(hash.map(|hash| hash.len()), bytes, "{algorithm:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_hash() {
        let whole = signed_by(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 3, 2]);
        for cut in 0..whole.len() {
            assert_eq!(end_point(&whole[..cut]), None, "{cut} bytes");
        }
        assert_eq!(end_point(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 0x30]), None);
    }
}
