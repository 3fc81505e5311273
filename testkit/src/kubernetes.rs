//! A real Kubernetes API server on a real etcd, with TLS, tokens and RBAC. No node, scheduler or controller is there: Leases need
//! none.

mod audit;
mod build;
mod options;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::now;
use crate::error::{Error, Result};
use crate::etcd::{Etcd, Version};
use crate::fetch;
use crate::ports::Port;
use crate::reaper::run_dir;
use crate::server::Server;
use crate::tls::Certificates;
pub use audit::Request;
pub use options::Options;

/// How long the server may take until it serves, and until it has stopped.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who may do everything.
pub const ADMIN: &str = "admin";
/// Who may do only what a test grants.
pub const CANDIDATE: &str = "candidate";

/// A running API server with its etcd; dropping it kills both, and removes their data unless a directory was chosen for it.
///
/// A method that cannot do what it says panics with the reason.
#[derive(Debug)]
pub struct Kubernetes {
    program: PathBuf,
    kubectl: PathBuf,
    args: Vec<String>,
    dir: PathBuf,
    kept: bool,
    port: Port,
    certificates: Certificates,
    server: Server,
    etcd: Etcd,
}

impl Kubernetes {
    /// What to start; [`Options::start`] starts it.
    pub fn options() -> Options {
        Options::default()
    }

    /// Starts one.
    pub fn start() -> Result<Kubernetes> {
        Options::default().start()
    }

    /// Builds and downloads what is needed, unless that has been done.
    pub fn prepare() -> Result<()> {
        build::ensure()?;
        fetch::KUBECTL.ensure()?;
        Version::V3_5.bundle().ensure().map(drop)
    }

    fn start_with(options: Options) -> Result<Kubernetes> {
        let program = build::ensure()?;
        let kubectl = fetch::KUBECTL.ensure()?.join("usr/bin/kubectl");
        let dir = options.dir.clone().unwrap_or_else(|| run_dir("kubernetes"));
        let io = |error: std::io::Error| Error::new(format!("{}: {error}", dir.display()));
        fs::create_dir_all(&dir).map_err(io)?;
        let etcd = Etcd::single(Version::V3_5);
        let etcd = if options.dir.is_some() { etcd.dir(dir.join("etcd")) } else { etcd }.start()?;
        let certificates = Certificates::make(&dir);
        let mut tokens = format!("{},{CANDIDATE},0\n", Self::token(CANDIDATE));
        let masters: Vec<&str> =
            std::iter::once(ADMIN).chain(options.users.iter().map(String::as_str)).collect();
        for (number, user) in masters.iter().enumerate() {
            tokens.push_str(&format!("{},{user},{},system:masters\n", Self::token(user), number + 1));
        }
        fs::write(dir.join("tokens.csv"), tokens).map_err(io)?;
        let port = Port::reserve();
        let path = |name: &str| dir.join(name).display().to_string();
        let mut args = vec![
            format!("--etcd-servers=http://{}", etcd.endpoints()[0]),
            format!("--secure-port={}", port.number()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", certificates.server_cert.display()),
            format!("--tls-private-key-file={}", certificates.server_key.display()),
            format!("--client-ca-file={}", certificates.ca.display()),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--anonymous-auth=false".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", certificates.server_cert.display()),
            format!("--service-account-signing-key-file={}", certificates.server_key.display()),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--profiling=false".to_owned(),
            format!("--cert-dir={}", path("")),
        ];
        if options.audit {
            args.extend(audit::flags(&dir).map_err(io)?);
        }
        args.extend(options.flags);
        let kept = options.dir.is_some();
        let server = Server::new("kube-apiserver", dir.join("kube-apiserver.log"));
        let mut server = Kubernetes { program, kubectl, args, dir, kept, port, certificates, server, etcd };
        for user in masters.into_iter().chain([CANDIDATE]) {
            server.write_kubeconfig(user, &server.endpoint(), &json!({ "token": Self::token(user) }));
        }
        server.spawn()?;
        server.await_ready()?;
        Ok(server)
    }

    /// The static bearer token of a user.
    pub fn token(user: &str) -> String {
        format!("token-of-{user}")
    }

    /// The address, as `127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.port.addr().to_string()
    }

    /// The certificates in use.
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// The etcd below.
    pub fn etcd(&mut self) -> &mut Etcd {
        &mut self.etcd
    }

    /// The directory that holds data, certificates, kubeconfig files and the log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A kubeconfig file for a user.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.kubeconfig"))
    }

    /// The URL that lets `incumbent` in as the administrator.
    pub fn url(&self) -> String {
        self.url_as(ADMIN)
    }

    /// The URL that lets `incumbent` in as `user`.
    pub fn url_as(&self, user: &str) -> String {
        format!("kubernetes:?kubeconfig={}", self.kubeconfig(user).display())
    }

    /// Writes a kubeconfig file that goes to `endpoint`, most likely a relay's, with this `user` entry of the file.
    #[track_caller]
    pub fn write_kubeconfig(&self, name: &str, endpoint: &str, user: &Value) -> PathBuf {
        let file = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "testkit", "cluster": {
                "server": format!("https://{endpoint}"),
                "certificate-authority": self.certificates.ca,
            }}],
            "users": [{ "name": "user", "user": user }],
            "contexts": [{ "name": "testkit", "context": { "cluster": "testkit", "user": "user" } }],
            "current-context": "testkit",
        });
        let path = self.kubeconfig(name);
        fs::write(&path, file.to_string()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// What was asked about Leases so far, if [`Options::audit`] was chosen.
    pub fn requests(&self) -> Vec<Request> {
        audit::read(&self.dir)
    }

    /// Gives `user` another token, which counts from the next start of the API server on. Kubeconfig files stay as they are.
    #[track_caller]
    pub fn change_token(&self, user: &str, token: &str) {
        let path = self.dir.join("tokens.csv");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let text = text.replace(&format!("{},{user},", Self::token(user)), &format!("{token},{user},"));
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    fn spawn(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        self.server.spawn(command)
    }

    fn await_ready(&mut self) -> Result<()> {
        let end = now() + PATIENCE;
        loop {
            if self.server.has_exited() {
                return Err(Error::new(format!(
                    "kube-apiserver ended by itself:\n{}",
                    self.server.log_tail()
                )));
            }
            let serves = |path| self.kubectl_command().args(["get", "--raw", path]).output();
            let is_there = |path| serves(path).is_ok_and(|output| output.status.success());
            if is_there("/readyz") && is_there("/api/v1/namespaces/default") {
                return Ok(());
            }
            if now() >= end {
                return Err(Error::new(format!(
                    "kube-apiserver does not serve:\n{}",
                    self.server.log_tail()
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The process id of the API server, which must be running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.server.pid().expect("the API server runs")
    }

    /// Freezes the API server.
    #[track_caller]
    pub fn pause(&self) {
        self.server.pause();
    }

    /// Wakes it.
    #[track_caller]
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Kills the API server; etcd runs on.
    pub fn kill(&mut self) {
        self.server.end();
    }

    /// Kills the API server, if it runs, and starts it again.
    #[track_caller]
    pub fn restart(&mut self) {
        self.spawn().and_then(|()| self.await_ready()).unwrap_or_else(|e| panic!("{e}"));
    }

    /// A kubectl that is the administrator.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", self.kubeconfig(ADMIN)).env("HOME", &self.dir);
        command
    }

    /// Runs kubectl with `args` and `input` to its end.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str], input: &str) -> Output {
        let mut child = self
            .kubectl_command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run kubectl: {e}"));
        let mut stdin = child.stdin.take().expect("stdin was piped");
        // A kubectl that has failed already reads nothing.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().unwrap_or_else(|e| panic!("kubectl: {e}"))
    }

    /// Runs kubectl, which must succeed, and gives what it printed.
    #[track_caller]
    pub fn kubectl_ok(&self, args: &[&str], input: &str) -> String {
        let output = self.kubectl(args, input);
        assert!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A Lease of the namespace `default`, if it is there.
    #[track_caller]
    pub fn lease(&self, name: &str) -> Option<Value> {
        let output = self.kubectl(&["get", "--raw", &lease_path(name)], "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || text.contains("NotFound"), "the Lease {name}: {text}");
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Deletes a Lease by hand.
    #[track_caller]
    pub fn delete_lease(&self, name: &str) {
        self.kubectl_ok(&["delete", "--raw", &lease_path(name)], "");
    }

    /// Changes a Lease by hand, however often its holder writes it meanwhile.
    #[track_caller]
    pub fn edit_lease(&self, name: &str, change: impl Fn(&mut Value)) {
        for _ in 0..20 {
            let mut lease = self.lease(name).unwrap_or_else(|| panic!("there is no Lease {name}"));
            change(&mut lease);
            let output =
                self.kubectl(&["replace", "--raw", &lease_path(name), "-f", "-"], &lease.to_string());
            let text = String::from_utf8_lossy(&output.stderr);
            if output.status.success() {
                return;
            }
            assert!(text.contains("Conflict") || text.contains("modified"), "the Lease {name}: {text}");
        }
        panic!("the Lease {name} is written too often to be edited");
    }

    /// Creates a Lease by hand.
    #[track_caller]
    pub fn create_lease(&self, lease: &Value) {
        self.kubectl_ok(&["create", "--raw", &lease_path(""), "-f", "-"], &lease.to_string());
    }

    /// Lets the servers run on when this process ends, and gives their process ids. Their directory must have been chosen with
    /// [`Options::dir`].
    ///
    /// # Panics
    /// If it was not.
    pub fn leave_running(mut self) -> Vec<u32> {
        assert!(self.kept, "servers in a directory of this run cannot outlive it");
        let mut pids: Vec<u32> = self.server.leave_running().into_iter().collect();
        pids.extend(self.etcd.let_run_on());
        pids
    }
}

fn lease_path(name: &str) -> String {
    let slash = if name.is_empty() { "" } else { "/" };
    format!("/apis/coordination.k8s.io/v1/namespaces/default/leases{slash}{name}")
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.server.end();
        if !self.kept {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
