//! One ZooKeeper process.

use std::fs;
use std::path::{Path, PathBuf};

use super::options::{Options, java};
use crate::error::{Error, Result, StartError};
use crate::ports::Port;
use crate::server::Server;
use crate::tls::Certificates;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) client: Port,
    /// Where clients with TLS are served, if they are.
    pub(super) secure: Port,
    dir: PathBuf,
    pub(super) server: Server,
    _peers: [Port; 2],
}

impl Member {
    /// The members of an ensemble, each with its ports and its configuration written; none runs yet.
    pub(super) fn plan(options: &Options, dir: &Path, tls: Option<&Certificates>) -> Result<Vec<Member>> {
        let ports: Vec<[Port; 4]> = (0..options.members).map(|_| [(); 4].map(|()| Port::reserve())).collect();
        let mut ensemble = String::new();
        if options.members > 1 {
            for (number, [_, _, peer, election]) in ports.iter().enumerate() {
                let (peer, election) = (peer.number(), election.number());
                ensemble.push_str(&format!("server.{}=127.0.0.1:{peer}:{election}\n", number + 1));
            }
        }
        if let Some(tls) = tls {
            ensemble.push_str(&secure(options, dir, tls)?);
        }
        let member = |(number, [client, secure, peer, election]): (usize, [Port; 4])| {
            let dir = dir.join(format!("n{number}"));
            let data = dir.join("data");
            fs::create_dir_all(&data).map_err(|e| at(&data, e))?;
            fs::write(data.join("myid"), (number + 1).to_string()).map_err(|e| at(&data, e))?;
            let mut text = format!(
                "tickTime={}\ninitLimit=60\nsyncLimit=20\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
                 admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n{ensemble}",
                options.tick_ms,
                data.display(),
                client.number(),
            );
            if tls.is_some() {
                text.push_str(&format!("secureClientPort={}\n", secure.number()));
            }
            let config = dir.join("zoo.cfg");
            fs::write(&config, text).map_err(|e| at(&config, e))?;
            let server = Server::new(&format!("ZooKeeper member {number}"), dir.join("log"));
            Ok(Member { number, client, secure, dir, server, _peers: [peer, election] })
        };
        ports.into_iter().enumerate().map(member).collect()
    }

    pub(super) fn spawn(&mut self, jars: &Path, options: &Options) -> Result<()> {
        let mut command = java();
        command.arg("-cp").arg(class_path(jars));
        command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.preAllocSize=64"]);
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(self.dir.join("zoo.cfg"));
        if let Some(clock) = &options.wall_clock {
            clock.give_to(&mut command);
        }
        self.server.spawn(command)
    }

    /// An error if the process was started and has ended by itself.
    pub(super) fn check_alive(&mut self) -> Result<(), StartError> {
        if !self.server.has_exited() {
            return Ok(());
        }
        self.server.end();
        let tail = self.server.log_tail();
        if tail.contains("Address already in use") {
            return Err(StartError::PortTaken);
        }
        let text = format!("ZooKeeper member {} ended by itself:\n{tail}", self.number);
        Err(StartError::Other(Error::new(text)))
    }
}

/// Every jar of the bundle, and of those that can write a log the one that does.
pub(super) fn class_path(jars: &Path) -> String {
    format!("{0}/slf4j-simple.jar:{0}/*", jars.display())
}

/// What a configuration needs to serve clients with TLS.
fn secure(options: &Options, dir: &Path, tls: &Certificates) -> Result<String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|e| at(path, e));
    let store = dir.join("server-store.pem");
    let text = read(&tls.server_key)? + &read(&tls.server_cert)?;
    fs::write(&store, text).map_err(|e| at(&store, e))?;
    Ok(format!(
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.location={}\nssl.trustStore.type=PEM\n\
         ssl.clientAuth={}\n",
        store.display(),
        tls.ca.display(),
        if options.client_auth { "need" } else { "none" },
    ))
}

fn at(path: &Path, error: std::io::Error) -> Error {
    Error::new(format!("{}: {error}", path.display()))
}
