//! Certificates. The certificate authority of one sandbox, and the certificates of the hosts whose TLS is opened there:
//! name constraints restrict the authority to these hosts; it expires soon after the longest life of a sandbox, and its
//! key stays in the server. The trusted roots for TLS with hosts on behalf of a program: those of Mozilla, which are
//! part of the binary, those of the system (`SSL_CERT_FILE`) and those of the operator.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::NoServerSessionStorage,
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{domain::network::Host, ports::network::Authority};

/// The longest life of a session, seven days, and one more.
const LIFE: Duration = Duration::days(8);
/// Clocks differ.
const EARLIER: Duration = Duration::hours(1);
const NAME: &str = "Sandbox";
/// The only protocol that is spoken where TLS is opened.
const ALPN: &[u8] = b"http/1.1";

/// Why a file of certificates cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it holds no certificate in PEM that can be a root")]
pub struct TrustError;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// TLS with hosts, with more roots in PEM.
///
/// # Errors
/// One of them is none.
pub(super) fn trust(more_pem: Option<&[u8]>) -> Result<Arc<ClientConfig>, TrustError> {
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

/// A new authority for these hosts and names below them. `None` where the system has no random numbers.
pub(super) fn make(hosts: &[Host]) -> Option<Authority> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).ok()?;
    let mut params = params_of_authority();
    params.name_constraints = Some(constraints(hosts));
    let certificate_pem = params.self_signed(&key).ok()?.pem();
    Some(Authority { hosts: hosts.to_vec(), certificate_pem, key_der: key.serialize_der() })
}

/// What the authority signs with: its own certificate has the constraints besides.
fn params_of_authority() -> CertificateParams {
    let mut params = new_params();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn new_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - EARLIER, now + LIFE);
    params
}

/// A kind of name that nothing is said of would be allowed as a whole.
fn constraints(hosts: &[Host]) -> NameConstraints {
    let mut permitted: Vec<_> = hosts
        .iter()
        .map(|host| match host {
            Host::Name(name) => GeneralSubtree::DnsName(name.clone()),
            Host::Address(address) => {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*address, bits))
            }
        })
        .collect();
    let mut excluded = Vec::new();
    if !hosts.iter().any(|host| matches!(host, Host::Name(_))) {
        // RFC 2606 keeps it for names that do not exist.
        permitted.push(GeneralSubtree::DnsName("invalid".to_owned()));
    }
    if !hosts.iter().any(|host| matches!(host, Host::Address(_))) {
        excluded.push(GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])));
        excluded.push(GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])));
    }
    NameConstraints { permitted_subtrees: permitted, excluded_subtrees: excluded }
}

/// Certificates of hosts, made for each connection: signing one costs as little as the handshake that shows it.
pub(super) struct LeafCertificates {
    /// What the authority can certify.
    hosts: Vec<Host>,
    issuer: Issuer<'static, KeyPair>,
    /// It follows each leaf: some clients know the authority by its position in what the host sends.
    root: CertificateDer<'static>,
    /// All leaves have this key.
    key: KeyPair,
}

impl LeafCertificates {
    pub(super) fn new(authority: &Authority) -> Option<Self> {
        let key = KeyPair::try_from(authority.key_der.as_slice()).ok()?;
        let issuer = Issuer::new(params_of_authority(), key);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).ok()?;
        let root = CertificateDer::from_pem_slice(authority.certificate_pem.as_bytes()).ok()?;
        Some(Self { hosts: authority.hosts.clone(), issuer, root, key })
    }

    /// TLS as the host; `None` where no certificate can be made that the sandbox trusts.
    pub(super) fn server(&self, host: &Host) -> Option<Arc<ServerConfig>> {
        if !self.hosts.iter().any(|root| host.is_within(root)) {
            return None;
        }
        let certificate = self.leaf(host).ok()?;
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().ok()?;
        let chain = vec![certificate, self.root.clone()];
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key.into()).ok()?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Nothing is kept between connections.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Some(Arc::new(config))
    }

    fn leaf(&self, host: &Host) -> Result<CertificateDer<'static>, rcgen::Error> {
        let mut params = new_params();
        // rcgen would derive it from the key, which all leaves share; NSS refuses two of an issuer with one number.
        params.serial_number = Some(Uuid::new_v4().into_bytes().to_vec().into());
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.clone().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok(params.signed_by(&self.key, &self.issuer)?.der().clone())
    }
}

#[cfg(test)]
mod tests {
    use rustls::{
        client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
        pki_types::{ServerName, UnixTime},
    };

    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).expect(text)
    }

    /// Whether a leaf of the authority is accepted for its host.
    fn is_accepted(authority: &Authority, text: &str) -> bool {
        let leaf = LeafCertificates::new(authority).expect("leaves").leaf(&host(text)).expect("a leaf");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate_pem.as_bytes()).expect("PEM")).expect("a root");
        // The roots of webpki have no constraints of their own: the authority is an intermediate of itself here.
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().expect("a verifier");
        let name = ServerName::try_from(text.trim_matches(['[', ']']).to_owned()).expect("a name");
        verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn authority_certifies_its_hosts_and_no_other() {
        let names = make(&[host("api.example.com")]).expect("an authority");
        let addresses = make(&[host("127.0.0.2")]).expect("an authority");
        for (authority, good, bad) in [
            (
                &names,
                ["api.example.com"],
                ["example.com", "api.example.org", "evilapi.example.com", "127.0.0.2", "[::1]"],
            ),
            (&addresses, ["127.0.0.2"], ["127.0.0.3", "[::1]", "[::ffff:127.0.0.2]", "example.com", "com"]),
        ] {
            for text in good {
                assert!(is_accepted(authority, text), "{text}");
            }
            for text in bad {
                assert!(!is_accepted(authority, text), "{text}");
            }
        }
    }

    #[test]
    fn certificates_are_made_for_the_hosts_of_the_authority_alone() {
        let leaves = LeafCertificates::new(&make(&[host("example.com")]).expect("an authority")).expect("leaves");
        assert!(leaves.server(&host("a.example.com")).is_some());
        for other in ["example.org", "evilexample.com", "com", "127.0.0.1"] {
            assert!(leaves.server(&host(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn certificates_of_an_authority_have_serial_numbers_of_their_own() {
        let leaves = LeafCertificates::new(&make(&[host("example.com")]).expect("an authority")).expect("leaves");
        let serials = ["a.example.com", "b.example.com", "a.example.com"].map(|text| {
            let leaf = leaves.leaf(&host(text)).expect("a leaf");
            // It follows the version, and is an integer of at most 20 bytes (RFC 5280, section 4.1.2.2).
            let version = [0xa0_u8, 3, 2, 1, 2];
            let at = leaf.windows(version.len()).position(|bytes| bytes == version).expect("a version");
            let [2, length @ ..=20, serial @ ..] = &leaf[at + version.len()..] else { panic!("no serial number") };
            serial[..usize::from(*length)].to_vec()
        });
        assert!(serials[0] != serials[1] && serials[1] != serials[2] && serials[2] != serials[0], "{serials:?}");
    }

    #[test]
    fn file_without_a_certificate_is_refused() {
        assert!(trust(None).is_ok());
        for pem in [&b""[..], b"text", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(trust(Some(pem)).map(|_| ()), Err(TrustError));
        }
    }
}
