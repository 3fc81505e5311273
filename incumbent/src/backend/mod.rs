//! The authorities that grant: one module each, one feature each, one row in [`REGISTRY`] each.

#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "etcd")]
mod etcd;
pub(crate) mod file;
#[cfg(any(feature = "etcd", feature = "nats", feature = "redis"))]
mod hosts;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "peers")]
pub(crate) mod peers;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "tls")]
mod server;
mod shown;
mod signals;
#[cfg(feature = "sql")]
mod sql;
#[cfg(feature = "tls")]
mod tls;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod values;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use incumbent_core::{Error, ErrorKind, Guarantees, Result, Settings};

pub use crate::thread::Factory;
use crate::url::{StoreUrl, nearest};

/// A backend that a URL can name.
#[derive(Debug)]
pub struct Scheme {
    /// What stands before the colon.
    pub name: &'static str,
    /// Other words for it, as the store's own clients write.
    pub aliases: &'static [&'static str],
    /// The Cargo feature that brings it; `None` if it is always there.
    pub feature: Option<&'static str>,
    /// A URL as an example.
    pub example: &'static str,
    /// What it promises; `None` if its feature is off.
    pub guarantees: Option<fn() -> Guarantees>,
    open: Option<Open>,
}

/// Checks a URL and says how to make the backend.
type Open = fn(&StoreUrl, &Settings) -> Result<Factory>;

/// Every backend, in the order of the tables.
pub static REGISTRY: &[Scheme] = &[
    Scheme {
        name: file::SCHEME,
        aliases: &[],
        feature: None,
        example: "file:/var/lib/incumbent",
        guarantees: Some(file::guarantees),
        open: Some(file::open),
    },
    Scheme {
        name: "etcd",
        aliases: &[],
        feature: Some("etcd"),
        example: "etcd://127.0.0.1:2379",
        #[cfg(feature = "etcd")]
        guarantees: Some(etcd::guarantees),
        #[cfg(not(feature = "etcd"))]
        guarantees: None,
        #[cfg(feature = "etcd")]
        open: Some(etcd::open),
        #[cfg(not(feature = "etcd"))]
        open: None,
    },
    Scheme {
        name: "consul",
        aliases: &[],
        feature: Some("consul"),
        example: "consul://127.0.0.1:8500",
        #[cfg(feature = "consul")]
        guarantees: Some(consul::guarantees),
        #[cfg(not(feature = "consul"))]
        guarantees: None,
        #[cfg(feature = "consul")]
        open: Some(consul::open),
        #[cfg(not(feature = "consul"))]
        open: None,
    },
    Scheme {
        name: "kubernetes",
        aliases: &[],
        feature: Some("kubernetes"),
        example: "kubernetes:",
        #[cfg(feature = "kubernetes")]
        guarantees: Some(kubernetes::guarantees),
        #[cfg(not(feature = "kubernetes"))]
        guarantees: None,
        #[cfg(feature = "kubernetes")]
        open: Some(kubernetes::open),
        #[cfg(not(feature = "kubernetes"))]
        open: None,
    },
    Scheme {
        name: "redis",
        aliases: &["rediss"],
        feature: Some("redis"),
        example: "redis://127.0.0.1:6379",
        #[cfg(feature = "redis")]
        guarantees: Some(redis::guarantees),
        #[cfg(not(feature = "redis"))]
        guarantees: None,
        #[cfg(feature = "redis")]
        open: Some(redis::open),
        #[cfg(not(feature = "redis"))]
        open: None,
    },
    Scheme {
        name: "postgres",
        aliases: &["postgresql"],
        feature: Some("postgres"),
        example: "postgres://app@127.0.0.1/app",
        #[cfg(feature = "postgres")]
        guarantees: Some(postgres::guarantees),
        #[cfg(not(feature = "postgres"))]
        guarantees: None,
        #[cfg(feature = "postgres")]
        open: Some(postgres::open),
        #[cfg(not(feature = "postgres"))]
        open: None,
    },
    Scheme {
        name: "mysql",
        aliases: &["mariadb"],
        feature: Some("mysql"),
        example: "mysql://app@127.0.0.1/app",
        #[cfg(feature = "mysql")]
        guarantees: Some(mysql::guarantees),
        #[cfg(not(feature = "mysql"))]
        guarantees: None,
        #[cfg(feature = "mysql")]
        open: Some(mysql::open),
        #[cfg(not(feature = "mysql"))]
        open: None,
    },
    Scheme {
        name: "zookeeper",
        aliases: &["zk"],
        feature: Some("zookeeper"),
        example: "zookeeper://127.0.0.1:2181",
        #[cfg(feature = "zookeeper")]
        guarantees: Some(zookeeper::guarantees),
        #[cfg(not(feature = "zookeeper"))]
        guarantees: None,
        #[cfg(feature = "zookeeper")]
        open: Some(zookeeper::open),
        #[cfg(not(feature = "zookeeper"))]
        open: None,
    },
    Scheme {
        name: "memory",
        aliases: &[],
        feature: None,
        example: "memory:",
        guarantees: Some(memory::guarantees),
        open: Some(memory::open),
    },
    Scheme {
        name: "nats",
        aliases: &[],
        feature: Some("nats"),
        example: "nats://127.0.0.1:4222/elections",
        #[cfg(feature = "nats")]
        guarantees: Some(nats::guarantees),
        #[cfg(not(feature = "nats"))]
        guarantees: None,
        #[cfg(feature = "nats")]
        open: Some(nats::open),
        #[cfg(not(feature = "nats"))]
        open: None,
    },
    Scheme {
        name: "raft",
        aliases: &[],
        feature: Some("peers"),
        example: "raft://node-1?peers=node-1=10.0.0.1:7400,…",
        #[cfg(feature = "peers")]
        guarantees: Some(peers::raft),
        #[cfg(not(feature = "peers"))]
        guarantees: None,
        #[cfg(feature = "peers")]
        open: Some(peers::open),
        #[cfg(not(feature = "peers"))]
        open: None,
    },
    Scheme {
        name: "bully",
        aliases: &[],
        feature: Some("peers"),
        example: "bully://node-1?peers=node-1=10.0.0.1:7400,…",
        #[cfg(feature = "peers")]
        guarantees: Some(peers::alone),
        #[cfg(not(feature = "peers"))]
        guarantees: None,
        #[cfg(feature = "peers")]
        open: Some(peers::open),
        #[cfg(not(feature = "peers"))]
        open: None,
    },
    Scheme {
        name: "ring",
        aliases: &[],
        feature: Some("peers"),
        example: "ring://node-1?peers=node-1=10.0.0.1:7400,…",
        #[cfg(feature = "peers")]
        guarantees: Some(peers::alone),
        #[cfg(not(feature = "peers"))]
        guarantees: None,
        #[cfg(feature = "peers")]
        open: Some(peers::open),
        #[cfg(not(feature = "peers"))]
        open: None,
    },
];

/// How to make the bare backend that `url` names, for whoever tests it or wraps it in one of his own
/// ([`Connection::open`](crate::Connection::open) takes the result). Call it on a thread with a tokio current-thread runtime with
/// time and I/O.
///
/// # Errors
/// As [`connect`](crate::connect).
pub fn factory(url: &str, settings: &Settings) -> Result<Factory> {
    Ok(open(url, *settings)?.factory)
}

/// What an administrator runs in the store, where the user in `url` may not make tables himself: the tables, and what the user needs
/// to use them.
///
/// # Errors
/// As [`connect`](crate::connect); [`ErrorKind::Unsupported`] if this kind of store has no tables.
pub fn schema(url: &str) -> Result<String> {
    open(url, Settings::default())?;
    let url = StoreUrl::parse(url)?;
    match url.scheme.as_str() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres::schema(&url),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => mysql::schema(&url),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: has no tables to make; name a database with --on, as postgres://USER@HOST/DATABASE",
                url.scheme
            ),
        )),
    }
}

fn unknown(url: &StoreUrl) -> Error {
    let scheme = url.scheme.as_str();
    let all = || REGISTRY.iter().flat_map(|known| std::iter::once(&known.name).chain(known.aliases)).copied();
    // As in HOST:PORT and http://HOST:PORT, which other tools take.
    let is_host = url.hosts.is_empty() && url.path.starts_with(|c: char| c.is_ascii_digit());
    let hint = if is_host || matches!(scheme, "http" | "https" | "tcp") {
        "the scheme names the kind of store, as in etcd://HOST:2379; ".to_owned()
    } else if let Some(nearest) = nearest(scheme, all()) {
        format!("did you mean {nearest}:? ")
    } else {
        String::new()
    };
    let known: Vec<&str> = REGISTRY.iter().map(|scheme| scheme.name).collect();
    let text = format!("no backend is called {scheme:?}; {hint}known are {}", known.join(", "));
    Error::new(ErrorKind::UnknownScheme, text)
}

/// A URL that was understood.
pub(crate) struct Opened {
    pub(crate) scheme: &'static str,
    pub(crate) factory: Factory,
    pub(crate) settings: Settings,
}

pub(crate) fn open(url: &str, mut settings: Settings) -> Result<Opened> {
    let url = StoreUrl::parse(url)?;
    let is_meant = |scheme: &&Scheme| scheme.name == url.scheme || scheme.aliases.contains(&&*url.scheme);
    let Some(scheme) = REGISTRY.iter().find(is_meant) else {
        return Err(unknown(&url));
    };
    let Some(open) = scheme.open else {
        let feature = scheme.feature.unwrap_or_default();
        return Err(Error::new(
            ErrorKind::UnknownScheme,
            format!(
                "this build has no {} backend; add to Cargo.toml: incumbent = {{ version = \"{}\", features = [\"{feature}\"] }}",
                scheme.name,
                env!("CARGO_PKG_VERSION"),
            ),
        ));
    };
    if let Some(ttl) = url.ttl()? {
        settings.ttl = ttl;
    }
    let factory = open(&url, &settings).map_err(|error| error.with_backend(scheme.name))?;
    Ok(Opened { scheme: scheme.name, factory, settings })
}
