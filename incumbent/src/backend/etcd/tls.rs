//! TLS settings of a connection to etcd, read from files at each connect, so that renewed certificates count.

use std::path::{Path, PathBuf};

use incumbent_core::{Error, ErrorKind, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// How to speak TLS: with which authorities, as whom, and to which name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Tls {
    /// PEM file of the authorities that may have signed the server's certificate; without it the system's.
    pub(super) ca: Option<PathBuf>,
    /// PEM files of a client certificate (with its chain) and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host in the URL.
    pub(super) server_name: Option<String>,
}

impl Tls {
    /// The settings for one connection.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if a file cannot be read or holds no certificate.
    pub(super) fn load(&self) -> Result<ClientTlsConfig> {
        let mut config = ClientTlsConfig::new();
        config = match &self.ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(read_certificates(path, "ca")?)),
            None => config.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            config = config
                .identity(Identity::from_pem(read_certificates(certificate, "cert")?, read(key, "key")?));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        Ok(config)
    }
}

fn read(path: &Path, parameter: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|cause| {
        let text = format!("cannot read {parameter}={}: {cause}", path.display());
        Error::new(ErrorKind::InvalidConfig, text).with_backend("etcd").with_source(cause)
    })
}

fn read_certificates(path: &Path, parameter: &str) -> Result<Vec<u8>> {
    let pem = read(path, parameter)?;
    let good = CertificateDer::pem_slice_iter(&pem).try_fold(0, |count, found| found.map(|_| count + 1));
    match good {
        Ok(1..) => Ok(pem),
        _ => {
            let text = format!("{parameter}={} holds no readable PEM certificate", path.display());
            Err(Error::new(ErrorKind::InvalidConfig, text).with_backend("etcd"))
        }
    }
}
