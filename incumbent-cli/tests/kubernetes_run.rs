//! The command on a real Kubernetes API server: what holds on every server, rights, and what others do to a Lease.

mod scenarios;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::kubernetes::{ADMIN, CANDIDATE};
use testkit::{Certificates, Kubernetes, Relay, Signal, Stream};

use scenarios::harness::{SOON, World, code, ended, wait_leading, wait_standby};
use scenarios::{JOB, Store, TTL, ends_the_term, let_in, refused, terms_of};

impl Store for Kubernetes {
    const TOUCHED_TTL: &str = "--ttl=20s";
    const BAD_URLS: &[(&str, &str)] = &[
        ("kubernetes://127.0.0.1:6443", "has no host"),
        ("kubernetes:Prod", "is no namespace"),
        ("kubernetes:a/b", "is no namespace"),
        ("kubernetes:?kubeconfg=x", "did you mean kubeconfig?"),
        ("kubernetes:?kubeconfig=/no/such/file", "/no/such/file"),
        ("kubernetes:", "kubeconfig cannot be used"),
    ];

    fn start() -> Kubernetes {
        let server = Kubernetes::start().expect("the API server starts");
        vacate(&server, "default");
        server
    }

    fn secured(shared: &Kubernetes) -> (Option<Kubernetes>, String, &'static str) {
        (None, shared.room("secured"), Kubernetes::token(ADMIN).leak())
    }

    fn url(&self) -> String {
        Kubernetes::url(self)
    }

    fn room(&self, name: &str) -> String {
        self.kubectl_ok(&["create", "namespace", name], "");
        vacate(self, name);
        by(name, &self.kubeconfig(ADMIN))
    }

    fn pause(&mut self) {
        Kubernetes::pause(self);
    }

    fn resume(&mut self) {
        Kubernetes::resume(self);
    }

    fn stop(&mut self) {
        Kubernetes::kill(self);
    }

    fn restart(&mut self) {
        Kubernetes::restart(self);
    }
}

scenarios::run_on!(Kubernetes);

/// A Lease that somebody held and gave back, so that the first candidate needs not wait.
fn vacate(server: &Kubernetes, namespace: &str) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "billing" },
        "spec": { "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z" },
    });
    server.kubectl_ok(&["create", "--raw", &leases(namespace), "-f", "-"], &lease.to_string());
}

fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// The URL that lets in whoever this kubeconfig file is about.
fn by(namespace: &str, file: &Path) -> String {
    format!("kubernetes:{namespace}?kubeconfig={}", file.display())
}

/// Curator #692: the leader learns at once that somebody deleted or took its Lease; and the token goes on rising. A holder that is
/// silent for its duration is followed.
#[test]
fn curator_692_a_lease_that_is_deleted_or_taken_by_hand_kills_the_job_at_once() {
    ends_the_term::<Kubernetes>(&[
        |server| server.delete_lease("billing"),
        |server| {
            server.edit_lease("billing", |lease| {
                lease["spec"]["holderIdentity"] = "somebody".into();
                lease["spec"]["leaseDurationSeconds"] = 1.into();
            });
        },
    ]);
}

/// kubernetes #125530: a connection that died without a word costs one call, not the term.
#[test]
fn k8s_125530_dead_connections_cost_no_term() {
    let (world, server) = (World::new(), <Kubernetes as Store>::start());
    let relay = Relay::to(&server.endpoint());
    let user = json!({ "token": Kubernetes::token(ADMIN) });
    let file = server.write_kubeconfig("relayed", &relay.addr(), &user);
    let on = by("", &file);
    let a = world.run(&["--on", &on, "--id=a", "--ttl=15s"], JOB);
    wait_leading(&a, 1);
    let b = world.run(&["--on", &on, "--id=b", "--ttl=15s"], JOB);
    wait_standby(&b);
    // Two rounds of renewals on connections that are all black holes, or reset, when they are next used.
    for round in 0..2 {
        if round == 0 {
            relay.silence_open()
        } else {
            relay.reset()
        };
        std::thread::sleep(Duration::from_secs(16));
        assert!(a.try_wait().is_none() && terms_of(&a) == 1, "{}", a.transcript());
        assert!(!a.lines().iter().any(|line| line.text.starts_with("lost")), "{}", a.transcript());
    }
    a.signal(Signal::TERM);
    wait_leading(&b, 1);
}

#[test]
fn a_kubeconfig_or_a_ttl_that_cannot_be_used_is_an_error_at_once() {
    let world = World::new();
    for (name, text) in [("garbage", "not: [a kubeconfig"), ("empty", "{}")] {
        std::fs::write(world.path(name), text).expect("a file");
        refused(&world, &by("", &world.path(name)), "kubeconfig cannot be used");
    }
    let (status, _, err) = ended(&world.run(&["--on=kubernetes:?ttl=3s"], JOB));
    assert_eq!(status, 125, "{err}");
    assert!(err.contains("below the shortest"), "{err}");
}

#[test]
fn names_that_no_lease_can_have_are_refused() {
    let world = World::new();
    let on = SHARED.room("names");
    for name in ["Billing", "bil_ling", "billing-", "billing.checkpoint.incumbent"] {
        let (status, _, err) = world.output(&["run", name, "--on", &on, "--", "true"]);
        assert_eq!(status, 125, "{name}: {err}");
        assert!(err.contains("the election name"), "{name}: {err}");
    }
    let longest = "x".repeat(128);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": longest },
        "spec": { "renewTime": "2026-01-01T00:00:00.000000Z" },
    });
    SHARED.kubectl_ok(&["create", "--raw", &leases("names"), "-f", "-"], &lease.to_string());
    let id = "i".repeat(128);
    let (status, _, err) =
        world.output(&["run", &longest, "--id", &id, "--on", &on, "--", "sh", "-c", "exit 7"]);
    assert_eq!(status, 7, "{err}");
}

/// Wrong credentials and TLS are fatal before the first term, and no error shows a secret.
#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let (world, server) = (World::new(), &*SHARED);
    let users = [
        (json!({ "token": "hunter2" }), "refused the credentials"),
        (json!({}), "refused the credentials"),
        (json!({ "token": "hunter2\nbreaks: headers" }), "header"),
        (exec("exit 3"), "exec plugin"),
        (exec("echo hunter2"), "exec plugin"),
        (
            json!({ "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/plugin", "interactiveMode": "Never" } }),
            "exec plugin",
        ),
    ];
    for (number, (user, hint)) in users.iter().enumerate() {
        let file = server.write_kubeconfig(&format!("wrong-{number}"), &server.endpoint(), user);
        let (status, out, err) = ended(&world.run(&["--on", &by("", &file), TTL, "-vv"], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{user}: {err}");
        assert!(err.contains(hint), "{user}: {err}");
        assert!(!err.contains("hunter2"), "{user}: {err}");
    }
    let other = Certificates::make(&world.path(""));
    for (scheme, ca, hint) in [("https", Some(&other.ca), "certificate is not accepted"), ("http", None, "")]
    {
        let path = server.kubeconfig(ADMIN);
        let mut config: Value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
        config["clusters"][0]["cluster"] = json!({ "server": format!("{scheme}://{}", server.endpoint()) });
        if let Some(ca) = ca {
            config["clusters"][0]["cluster"]["certificate-authority"] = ca.display().to_string().into();
        }
        let path = world.path(&format!("{scheme}.kubeconfig"));
        std::fs::write(&path, config.to_string()).expect("a file");
        refused(&world, &by("", &path), hint);
    }
}

/// A kubeconfig user whose plugin is this shell script.
fn exec(script: &str) -> Value {
    json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", script],
        "interactiveMode": "Never",
    }})
}

fn credential(token: &str, expires: &str) -> String {
    let answer = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": { "token": token, "expirationTimestamp": expires },
    });
    answer.to_string()
}

#[test]
fn an_exec_plugin_and_a_client_certificate_let_us_in() {
    let (world, server) = (World::new(), &*SHARED);
    server.room("plugin");
    let answer = credential(&Kubernetes::token(ADMIN), "2090-01-01T00:00:00Z");
    let plugin = exec(&format!("echo '{answer}'"));
    let file = server.write_kubeconfig("plugin", &server.endpoint(), &plugin);
    let_in::<Kubernetes>(&world, &by("plugin", &file));
    // The user `client` of the certificate may do nothing yet.
    let certificates = server.certificates();
    let user =
        json!({ "client-certificate": certificates.client_cert, "client-key": certificates.client_key });
    let file = server.write_kubeconfig("certificate", &server.endpoint(), &user);
    let (status, _, err) = ended(&world.run(&["--on", &by("plugin", &file), TTL], "exit 5"));
    assert_eq!(status, 125, "{err}");
    assert!(err.contains("\"client\"") && err.contains("grant the verb get on leases"), "{err}");
}

/// A manifest in the documentation, as YAML for kubectl.
fn documented(kind: &str) -> &'static str {
    let page = include_str!("../../docs/backends/kubernetes.md");
    let mut manifests = page.split("```yaml\n").skip(1).filter_map(|text| text.split("```").next());
    manifests.find(|text| text.contains(&format!("\nkind: {kind}\n"))).expect("the page shows one")
}

/// Gives the candidate the role in that namespace, which may take a moment to count.
fn bind(namespace: &str, role: &str) {
    let namespace = format!("--namespace={namespace}");
    SHARED.kubectl_ok(&["apply", &namespace, "-f", "-"], role);
    let binding = ["create", "rolebinding", "incumbent", "--role=incumbent-billing", "--user", CANDIDATE];
    let bound = SHARED.kubectl(&[&binding[..], &[&namespace]].concat(), "");
    let text = String::from_utf8_lossy(&bound.stderr);
    assert!(bound.status.success() || text.contains("already exists"), "{text}");
    std::thread::sleep(Duration::from_secs(1));
}

/// The rights that the documentation lists are all that is needed, and each of them is.
#[test]
fn the_documented_rights_are_enough_and_a_missing_one_is_named() {
    let world = World::new();
    SHARED.kubectl_ok(&["create", "namespace", "rights"], "");
    let on = by("rights", &SHARED.kubeconfig(CANDIDATE));
    refused(&world, &on, "grant the verb get on leases of coordination.k8s.io in the namespace rights");

    bind("rights", documented("Role"));
    let script = "echo \"leading $INCUMBENT_TOKEN\"; echo kept | \"$INCUMBENT\" checkpoint put && \
                  \"$INCUMBENT\" checkpoint get; exec sleep 600";
    let a = world.run(&["--on", &on, "--id=a", TTL], script);
    wait_leading(&a, 1);
    a.wait_line(|line| line == "kept", SOON);
    let deployed = SHARED.kubectl_ok(&["apply", "--namespace=rights", "-f", "-"], documented("Deployment"));
    assert!(deployed.contains("deployment.apps/billing created"), "{deployed}");
    let b = world.run(&["--on", &on, "--id=b", TTL], JOB);
    wait_standby(&b);
    let (status, _, err) = world.output(&["transfer", "billing", "--to=b", "--on", &on]);
    assert_eq!(status, 0, "{err}");
    wait_leading(&b, 1);
    for process in [&a, &b] {
        let text = process.text(Stream::Err);
        assert!(!text.contains("forbid"), "{}", process.transcript());
    }
    // The one that stands by goes first: it must not lead once more while it loses the right to release.
    for process in [&a, &b] {
        process.signal(Signal::TERM);
        code(process);
    }

    for verb in ["get", "update", "create"] {
        let less = documented("Role")
            .replace(&format!("\"{verb}\", "), "")
            .replace(&format!("[\"{verb}\"]"), "[\"list\"]");
        bind("rights", &less);
        if verb == "create" {
            SHARED.kubectl_ok(&["delete", "--raw", &format!("{}/billing", leases("rights"))], "");
        }
        let (status, _, err) = ended(&world.run(&["--on", &on, "--no-wait", "--id=c", TTL], JOB));
        assert_eq!(status, 125, "without {verb}: {err}");
        assert!(err.contains(&format!("grant the verb {verb} on leases")), "without {verb}: {err}");
    }
}

/// Without the right to watch there is still a hand-over, later.
#[test]
fn without_the_right_to_watch_standbys_look_by_themselves() {
    let world = World::new();
    SHARED.room("unwatched");
    bind("unwatched", &documented("Role").replace(", \"watch\"", ""));
    let on = by("unwatched", &SHARED.kubeconfig(CANDIDATE));
    let a = world.run(&["--on", &on, "--id=a", "--ttl=10s"], JOB);
    wait_leading(&a, 1);
    let b = world.run(&["--on", &on, "--id=b", "--ttl=10s", "-v"], JOB);
    wait_standby(&b);
    b.wait_line(|line| line.contains("grant the verb watch on leases"), SOON);
    a.signal(Signal::TERM);
    wait_leading(&b, 1);
}

/// As in a Pod: a service account that was made for it, its token, authority and namespace in the files where a Pod finds them.
#[test]
fn in_a_pod_the_service_account_is_used() {
    testkit::require(testkit::Capability::MountNs);
    let (world, server) = (World::new(), &*SHARED);
    server.kubectl_ok(&["create", "namespace", "shop"], "");
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "billing" } });
    let accounts = "/api/v1/namespaces/shop/serviceaccounts";
    server.kubectl_ok(&["create", "--raw", accounts, "-f", "-"], &account.to_string());
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": 3600 },
    });
    let path = format!("{accounts}/billing/token");
    let answer = server.kubectl_ok(&["create", "--raw", &path, "-f", "-"], &request.to_string());
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    server.kubectl_ok(&["apply", "--namespace=shop", "-f", "-"], documented("Role"));
    let bind = ["create", "rolebinding", "incumbent", "--namespace=shop", "--role=incumbent-billing"];
    server.kubectl_ok(&[&bind[..], &["--serviceaccount=shop:billing"]].concat(), "");

    let secrets = world.path("secrets");
    std::fs::create_dir(&secrets).expect("a folder");
    let token = answer["status"]["token"].as_str().expect("a token");
    std::fs::write(secrets.join("token"), token).expect("a file");
    std::fs::write(secrets.join("namespace"), "shop").expect("a file");
    std::fs::copy(&server.certificates().ca, secrets.join("ca.crt")).expect("a file");
    let (host, port) =
        server.endpoint().split_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).expect("both");
    std::thread::sleep(Duration::from_secs(1));
    let script = r#"
        mount -t tmpfs none /var && mkdir -p /var/run/secrets/kubernetes.io/serviceaccount || exit 90
        mount --bind secrets /var/run/secrets/kubernetes.io/serviceaccount || exit 91
        exec "$INCUMBENT" run billing $ON --ttl=5s -- sh -c 'echo "leading $INCUMBENT_TOKEN"; exit 7'"#;
    std::fs::write(world.path("script"), script).expect("a file");
    let pod = |on: &str| {
        let environment = format!("KUBERNETES_SERVICE_HOST={host} KUBERNETES_SERVICE_PORT={port} ON='{on}'");
        let shell = world.shell(&format!("{environment} exec unshare --map-root-user --mount sh script"));
        let status = shell.wait(SOON);
        (status.code(), shell.transcript())
    };
    let (status, transcript) = pod("--on=kubernetes:");
    assert_eq!(status, Some(7), "{transcript}");
    let (status, transcript) = pod("");
    assert!(status == Some(125) && transcript.contains("--on kubernetes:"), "{transcript}");
    server.kubectl_ok(&["get", "--raw", &format!("{}/billing", leases("shop"))], "");
}
