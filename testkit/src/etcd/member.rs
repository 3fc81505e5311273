//! One etcd process.

use std::path::Path;

use super::options::Options;
use super::{program, reserve_ports};
use crate::error::{Error, Result, StartError};
use crate::ports::Port;
use crate::server::Server;
use crate::tls::Certificates;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) client: Port,
    pub(super) server: Server,
    args: Vec<String>,
    _peer: Port,
}

impl Member {
    /// The members of a cluster, each with its ports and flags; none runs yet.
    pub(super) fn plan(options: &Options, dir: &Path, tls: Option<&Certificates>) -> Vec<Member> {
        let ports: Vec<(Port, Port)> = (0..options.members).map(|_| reserve_ports()).collect();
        let cluster: Vec<String> =
            ports.iter().enumerate().map(|(i, (_, peer))| format!("n{i}=http://{}", peer.addr())).collect();
        let cluster = cluster.join(",");
        let member = |(i, (client, peer)): (usize, (Port, Port))| {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let client_url = format!("{scheme}://{}", client.addr());
            let peer_url = format!("http://{}", peer.addr());
            let mut args = vec![
                format!("--name=n{i}"),
                format!("--data-dir={}", dir.join(format!("n{i}")).display()),
                format!("--listen-client-urls={client_url}"),
                format!("--advertise-client-urls={client_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster={cluster}"),
                "--logger=zap".to_owned(),
                "--log-level=warn".to_owned(),
            ];
            if let Some(tls) = tls {
                args.push(format!("--cert-file={}", tls.server_cert.display()));
                args.push(format!("--key-file={}", tls.server_key.display()));
                if options.client_auth {
                    args.push("--client-cert-auth".to_owned());
                    // By itself this already makes etcd demand client certificates.
                    args.push(format!("--trusted-ca-file={}", tls.ca.display()));
                }
            }
            args.extend(options.flags.iter().cloned());
            let server = Server::new(&format!("etcd member n{i}"), dir.join(format!("n{i}.log")));
            Member { name: format!("n{i}"), client, server, args, _peer: peer }
        };
        ports.into_iter().enumerate().map(member).collect()
    }

    pub(super) fn spawn(&mut self, bin: &Path) -> Result<()> {
        let mut command = program(&bin.join("etcd"));
        command.args(&self.args);
        self.server.spawn(command)
    }

    /// An error if the process was started and has ended by itself.
    pub(super) fn check_alive(&mut self) -> Result<(), StartError> {
        if !self.server.has_exited() {
            return Ok(());
        }
        self.server.end();
        let tail = self.server.log_tail();
        if tail.contains("address already in use") {
            return Err(StartError::PortTaken);
        }
        Err(StartError::Other(Error::new(format!("etcd member {} ended by itself:\n{tail}", self.name))))
    }
}
