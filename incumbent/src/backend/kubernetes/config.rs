//! Which API server, as whom, and in which namespace: from a kubeconfig file or from the Pod's service account.

use std::path::PathBuf;

use futures_util::FutureExt;
use incumbent_core::Result;
use kube_client::Config;
use kube_client::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::failure::misconfigured;
use crate::url::{StoreUrl, bad};

/// Where the settings come from. Read anew for each client, so that renewed credentials count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Source {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    pub(super) namespace: Option<String>,
}

impl Source {
    pub(super) fn new(url: &StoreUrl) -> Result<Source> {
        url.only(&["kubeconfig", "context"])?;
        if !url.hosts.is_empty() {
            return Err(bad(
                "kubernetes: has no host, it takes the API server from the Pod's service account or from a kubeconfig; write kubernetes: or kubernetes:NAMESPACE",
            ));
        }
        let namespace = Some(url.path.clone()).filter(|path| !path.is_empty());
        if let Some(name) = &namespace
            && !is_label(name)
        {
            return Err(bad(format!(
                "{name:?} is no namespace: one is 1 to 63 of a-z 0-9 - and starts and ends with a letter or digit; write kubernetes: or kubernetes:NAMESPACE"
            )));
        }
        let given = |name| url.parameter(name).map(str::to_owned);
        Ok(Source {
            kubeconfig: given("kubeconfig").map(PathBuf::from),
            context: given("context"),
            namespace,
        })
    }

    /// Reads the settings. May block: it reads files.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](incumbent_core::ErrorKind::InvalidConfig) with what was looked for.
    pub(super) fn read(&self) -> Result<Config> {
        let mut config = match &self.kubeconfig {
            Some(path) => self.choose(Kubeconfig::read_from(path))?,
            None if self.is_in_pod() => Config::incluster().map_err(|error| {
                misconfigured(format!(
                    "this Pod has no usable service account ({error}); let its token be mounted, or give kubeconfig="
                ))
            })?,
            None => self.choose(Kubeconfig::read())?,
        };
        if config.proxy_url.is_some() {
            return Err(misconfigured(
                "the settings ask for a proxy (proxy-url in the kubeconfig, or HTTPS_PROXY), which this backend does not speak; reach the API server directly",
            ));
        }
        if let Some(namespace) = &self.namespace {
            config.default_namespace.clone_from(namespace);
        }
        Ok(config)
    }

    /// As client-go's controllers: the service account, unless a file is named.
    fn is_in_pod(&self) -> bool {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        self.context.is_none() && !set("KUBECONFIG") && set("KUBERNETES_SERVICE_HOST")
    }

    fn choose(&self, file: Result<Kubeconfig, KubeconfigError>) -> Result<Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = file.and_then(|file| {
            // Nothing in it waits for anything.
            Config::from_custom_kubeconfig(file, &options)
                .now_or_never()
                .unwrap_or(Err(KubeconfigError::FindPath))
        });
        config.map_err(|error| {
            misconfigured(format!(
                "the kubeconfig cannot be used ({error}); check kubeconfig=, context= and $KUBECONFIG, or run where a service account is mounted"
            ))
        })
    }
}

/// The rule for the names of namespaces: an RFC 1123 label.
fn is_label(name: &str) -> bool {
    let outer = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = name.bytes().next().is_some_and(outer) && name.bytes().last().is_some_and(outer);
    ends && name.len() <= 63 && name.bytes().all(|b| outer(b) || b == b'-')
}
