//! TLS settings of a backend's URL, read from their files at each connect, so that renewed certificates count.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use incumbent_core::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

/// How to speak TLS: with which authorities, as whom, and to which name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tls {
    /// PEM file of the authorities that may have signed the server's certificate; without it the system's.
    pub(crate) ca: Option<PathBuf>,
    /// PEM files of a client certificate (with its chain) and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host in the URL.
    pub(crate) server_name: Option<String>,
}

impl Tls {
    /// The settings for one connection that is to speak one of `protocols` (ALPN names; none: the server is not asked).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if a file cannot be read or does not hold what it should.
    pub(crate) fn config(&self, protocols: &[&[u8]]) -> Result<ClientConfig> {
        let mut config = self.identified(builder().with_root_certificates(self.roots()?))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(config)
    }

    /// The same for a client library that by itself expects the host that it dials in the certificate: with `server_name`, that
    /// name is expected instead.
    ///
    /// # Errors
    /// As [`config`](Tls::config).
    #[cfg(feature = "nats")]
    pub(crate) fn config_with_name(&self) -> Result<ClientConfig> {
        let Some(name) = &self.server_name else { return self.config(&[]) };
        let name = self.server_name(name)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(self.roots()?.into(), provider)
                .build()
                .map_err(|cause| {
                    Error::new(ErrorKind::InvalidConfig, "the authorities cannot be used").with_source(cause)
                })?;
        let verifier = Arc::new(named::Verifier { name, verifier });
        self.identified(builder().dangerous().with_custom_certificate_verifier(verifier))
    }

    /// The settings of the side that is connected to, for peers: whoever connects must show a certificate of the same authority.
    ///
    /// # Errors
    /// As [`config`](Tls::config); also without an identity.
    #[cfg(feature = "peers")]
    pub(crate) fn server_config(&self) -> Result<rustls::ServerConfig> {
        let Some((certificate, key)) = &self.identity else {
            return Err(Error::new(ErrorKind::InvalidConfig, "a peer needs cert= and key="));
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let invalid = |cause: Box<dyn StdError + Send + Sync>| {
            let text = format!("cert={} and key= cannot be used by a peer", certificate.display());
            Error::new(ErrorKind::InvalidConfig, text).with_source(cause)
        };
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            self.roots()?.into(),
            Arc::clone(&provider),
        );
        let verifier = verifier.build().map_err(|cause| invalid(cause.into()))?;
        rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|cause| invalid(cause.into()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(certificate, "cert")?, private_key(key)?)
            .map_err(|cause| invalid(cause.into()))
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authorities()?);
        Ok(roots)
    }

    /// The certificates of the authorities, as far as they can be used.
    ///
    /// # Errors
    /// As [`config`](Tls::config).
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>> {
        let mut found = match &self.ca {
            Some(path) => certificates(path, "ca")?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        found.retain(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok());
        if found.is_empty() {
            let text = match &self.ca {
                Some(path) => format!("ca={} holds no certificate that can be used", path.display()),
                None => "this system names no certificate authorities; give ca=".to_owned(),
            };
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(found)
    }

    fn identified(
        &self,
        builder: rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>,
    ) -> Result<ClientConfig> {
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let chain = certificates(certificate, "cert")?;
        builder.with_client_auth_cert(chain, private_key(key)?).map_err(|cause| {
            let text = format!("cert={} and key= do not go together", certificate.display());
            Error::new(ErrorKind::InvalidConfig, text).with_source(cause)
        })
    }

    /// The name that the server's certificate must carry, for a server at `host` (without port).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if it is no DNS name and no address.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>> {
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned()).map_err(|cause| {
            Error::new(ErrorKind::InvalidConfig, format!("{name:?} can be no server_name")).with_source(cause)
        })
    }
}

/// Settings with *ring*, whatever else is compiled in.
pub(crate) fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the default protocol versions")
}

/// What to do about a server that was spoken to in TLS and speaks plain text.
pub(crate) const NOT_TLS: &str = "it does not speak TLS; use tls=off if that is meant";

/// What to do, if TLS is what failed.
pub(crate) fn advice(source: &(dyn StdError + 'static)) -> Option<String> {
    Some(match find(source)? {
        rustls::Error::InvalidMessage(_) => NOT_TLS.to_owned(),
        rustls::Error::InvalidCertificate(reason) => format!(
            "its certificate is not accepted ({reason}); check ca= (the authority that signed it) and server_name="
        ),
        rustls::Error::AlertReceived(alert) => refused(&format!("{alert:?}")),
        other => format!("TLS cannot be agreed: {other}"),
    })
}

/// What to do about a server that ended the connection with this alert.
pub(crate) fn refused(alert: &str) -> String {
    format!(
        "it refused the TLS connection ({alert}); check cert= and key= (a client certificate that its authority signed)"
    )
}

/// The TLS error in the chain of causes; it hides inside an I/O error, which does not show it as its source.
pub(crate) fn find<'a>(source: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(source);
    std::iter::from_fn(|| {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
    .find_map(|cause| {
        cause
            .downcast_ref::<rustls::Error>()
            .or_else(|| cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>())
    })
}

fn certificates(path: &Path, parameter: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path, parameter)?).collect();
    match found {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => {
            let text = format!("{parameter}={} holds no readable PEM certificate", path.display());
            Err(Error::new(ErrorKind::InvalidConfig, text))
        }
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    // The cause is left out: nothing of a key belongs into an error.
    PrivateKeyDer::from_pem_slice(&read(path, "key")?).map_err(|_| {
        Error::new(ErrorKind::InvalidConfig, format!("key={} holds no readable PEM key", path.display()))
    })
}

fn read(path: &Path, parameter: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|cause| {
        let text = format!("cannot read {parameter}={}: {cause}", path.display());
        Error::new(ErrorKind::InvalidConfig, text).with_source(cause)
    })
}

#[cfg(feature = "nats")]
mod named {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    /// Checks a certificate as usual, but for one name, whichever host was dialed.
    #[derive(Debug)]
    pub(super) struct Verifier {
        pub(super) name: ServerName<'static>,
        pub(super) verifier: Arc<WebPkiServerVerifier>,
    }

    impl ServerCertVerifier for Verifier {
        fn verify_server_cert(
            &self,
            certificate: &CertificateDer<'_>,
            chain: &[CertificateDer<'_>],
            _dialed: &ServerName<'_>,
            ocsp: &[u8],
            now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            self.verifier.verify_server_cert(certificate, chain, &self.name, ocsp, now)
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verifier.verify_tls12_signature(message, certificate, signed)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verifier.verify_tls13_signature(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.verifier.supported_verify_schemes()
        }
    }
}
