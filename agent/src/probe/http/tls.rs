//! TLS without verification of the server. As in the kubelet, a probe asks whether a server works, not who it is. No secret may
//! depend on this connection.

use std::sync::Arc;

use http::Uri;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, InvalidMessage, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{HttpError, no_answer};
use crate::error_chain::chain;

/// Speaks TLS on a connection to the host of a URL.
pub(super) async fn wrap(
    url: &Uri,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, HttpError> {
    let failed = |why: String| no_answer(url, format!("tls: {why}"));
    let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(error.to_string()))?;
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.map_err(|error| {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
                HttpError::NotTls { url: url.to_string() }
            }
            _ => failed(chain(&error)),
        }
    })
}

/// Accepts every certificate. A signature by an unverified key proves nothing either.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
