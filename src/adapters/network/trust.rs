//! The trusted roots for TLS with hosts on behalf of a program: those of Mozilla, which are part of the binary, those
//! of the system (`SSL_CERT_FILE`) and those of the operator.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// The only protocol that is spoken where TLS is opened.
pub(super) const ALPN: &[u8] = b"http/1.1";

/// Why a file of certificates cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it holds no certificate in PEM that can be a root")]
pub struct TrustError;

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// TLS with hosts, with more roots in PEM.
///
/// # Errors
/// One of them is none.
pub(super) fn client(more_pem: Option<&[u8]>) -> Result<Arc<ClientConfig>, TrustError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(pem) = more_pem {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            certificate.ok().and_then(|certificate| roots.add(certificate).ok()).ok_or(TrustError)?;
        }
        if roots.len() == before {
            return Err(TrustError);
        }
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = builder.map_err(|_| TrustError)?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_a_certificate_is_refused() {
        assert!(client(None).is_ok());
        for pem in [&b""[..], b"text", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(client(Some(pem)).map(|_| ()), Err(TrustError));
        }
    }
}
