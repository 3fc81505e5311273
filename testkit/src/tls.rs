//! A certificate authority for one test, with a certificate for its servers and one for its clients.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// PEM files of a new authority and of what it has signed.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The servers' certificate.
    pub server_cert: PathBuf,
    /// The servers' key.
    pub server_key: PathBuf,
    /// A certificate of the servers that ended in 2021.
    pub expired_cert: PathBuf,
    /// Its key.
    pub expired_key: PathBuf,
    /// The clients' certificate, for the common name `client`.
    pub client_cert: PathBuf,
    /// The clients' key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes an authority and writes its files into `dir`, which must exist.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[track_caller]
    pub fn make(dir: &Path) -> Certificates {
        Certificates::make_for(dir, &["127.0.0.1", "::1", "localhost"])
    }

    /// The same for servers with other names or addresses.
    ///
    /// # Panics
    /// If a file cannot be written, or a name is none.
    #[track_caller]
    pub fn make_for(dir: &Path, servers: &[&str]) -> Certificates {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca.distinguished_name.push(DnType::CommonName, "testkit authority");
        let ca_key = KeyPair::generate().expect("a key pair");
        let ca_pem = ca.self_signed(&ca_key).expect("a certificate of the authority").pem();
        let issuer = Issuer::new(ca, ca_key);
        let write = |name: &str, pem: String| {
            let path = dir.join(name);
            fs::write(&path, pem).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            path
        };
        let leaf = |name: &str| {
            let names: Vec<String> = servers.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).expect("valid names");
            params.distinguished_name.push(DnType::CommonName, name);
            // etcd's own gateway is a client of its server and shows it the server's certificate.
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            params.use_authority_key_identifier_extension = true;
            if name == "expired" {
                params.not_before = rcgen::date_time_ymd(2020, 1, 1);
                params.not_after = rcgen::date_time_ymd(2021, 1, 1);
            }
            let key = KeyPair::generate().expect("a key pair");
            let cert = params.signed_by(&key, &issuer).expect("a signed certificate");
            (write(&format!("{name}.pem"), cert.pem()), write(&format!("{name}.key"), key.serialize_pem()))
        };
        let (server_cert, server_key) = leaf("server");
        let (expired_cert, expired_key) = leaf("expired");
        let (client_cert, client_key) = leaf("client");
        let ca = write("ca.pem", ca_pem);
        Certificates { ca, server_cert, server_key, expired_cert, expired_key, client_cert, client_key }
    }
}
