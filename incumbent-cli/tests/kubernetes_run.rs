//! The command on a real Kubernetes API server: take-overs, lost leases, outages, rights, and what others do to a Lease.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "cli/harness.rs"]
mod harness;

use std::time::Duration;

use serde_json::{Value, json};
use testkit::kubernetes::{ADMIN, CANDIDATE};
use testkit::{Kubernetes, Line, Proc, Relay, Signal, Stream};

use harness::{World, code, ended, lives, pid_in};

const TTL: &str = "--ttl=5s";
/// A new Lease is waited for, one ttl; an API server on a busy machine is slow.
const SOON: Duration = Duration::from_secs(60);
/// A job that notes its process and each step.
const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                   while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

fn server() -> Kubernetes {
    Kubernetes::start().expect("the API server starts")
}

fn candidate(world: &World, server: &Kubernetes, id: &str) -> Proc {
    world.run(&["--on", &server.url(), &format!("--id={id}"), TTL], JOB)
}

fn is_leading(line: &str) -> bool {
    line.starts_with("leading ")
}

#[track_caller]
fn token(line: &Line) -> u64 {
    line.text["leading ".len()..].parse().expect("a token")
}

#[track_caller]
fn wait_leading(process: &Proc, terms: usize) -> u64 {
    token(&process.wait_lines(terms, is_leading, SOON)[terms - 1])
}

#[track_caller]
fn wait_standby(process: &Proc) {
    process.wait_line(|line| line.starts_with("standby: billing is led by"), SOON);
}

/// A record that somebody held and gave back, so that the first candidate needs not wait.
fn prepare(server: &Kubernetes) {
    server.create_lease(&json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": "billing" },
        "spec": { "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z" },
    }));
}

/// agent-sandbox #1249, client-go #1417: after SIGTERM the next one leads at once, not after the lease.
#[test]
fn a_standby_takes_over_from_a_leader_that_is_told_to_stop() {
    let (world, server) = (World::new(), server());
    prepare(&server);
    let on = server.url();
    let a = world.run(&["--on", &on, "--id=a", "--ttl=1h"], JOB);
    let first = wait_leading(&a, 1);
    let b = world.run(&["--on", &on, "--id=b", "--ttl=1h"], JOB);
    wait_standby(&b);
    a.signal(Signal::TERM);
    assert!(wait_leading(&b, 1) > first);
    assert_eq!(code(&a), 128 + 15);
    assert!(a.text(Stream::Err).ends_with("released: billing\n"), "{}", a.transcript());
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_or_frozen() {
    let (world, server) = (World::new(), server());
    prepare(&server);
    for (signal, one, other) in [(Signal::KILL, "a", "b"), (Signal::STOP, "c", "d")] {
        let a = candidate(&world, &server, one);
        let first = wait_leading(&a, 1);
        let job = pid_in(&world.path(&format!("pid-{one}")));
        let b = candidate(&world, &server, other);
        wait_standby(&b);
        a.signal(signal);
        assert!(wait_leading(&b, 1) > first);
        assert!(!lives(job), "the old job lives on");
        if signal == Signal::STOP {
            let steps = world.read("steps-c");
            a.signal(Signal::CONT);
            wait_standby(&a);
            assert_eq!(world.read("steps-c"), steps, "it took a step after the successor began");
        }
        b.signal(Signal::TERM);
        code(&b);
    }
}

/// curator_692: the leader learns at once that somebody deleted or took its Lease; and the token goes on rising.
#[test]
fn curator_692_a_lease_that_is_deleted_or_taken_by_hand_kills_the_job_at_once() {
    let (world, server) = (World::new(), server());
    prepare(&server);
    let a = world.run(&["--on", &server.url(), "--id=a", "--ttl=20s"], JOB);
    let first = wait_leading(&a, 1);
    let job = pid_in(&world.path("pid-a"));
    server.delete_lease("billing");
    a.wait_line(|line| line.starts_with("lost: "), SOON);
    assert!(testkit::wait_until(SOON, || !lives(job)));
    let second = wait_leading(&a, 2);
    assert!(second > first, "{second} is not above {first}");
    server.edit_lease("billing", |lease| {
        lease["spec"]["holderIdentity"] = "somebody".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
    });
    a.wait_line(
        |line| line.starts_with("standby: billing is led by somebody (a client of another kind"),
        SOON,
    );
    assert!(wait_leading(&a, 3) > second, "a holder that is silent for its duration is followed");
}

#[test]
fn a_server_that_is_frozen_under_a_leader_stops_the_job_in_time() {
    let (world, server) = (World::new(), server());
    prepare(&server);
    let job =
        "trap 'echo told' TERM; echo \"leading $INCUMBENT_TOKEN\"; while :; do echo step; sleep 0.05; done";
    let a = world.run(&["--on", &server.url(), "--id=a", "--ttl=10s"], job);
    let first = wait_leading(&a, 1);
    server.pause();
    let stopping =
        a.wait_line(|line| line.starts_with("stopping: the lease of billing could not be renewed"), SOON);
    a.wait_line(|line| line == "told", SOON);
    a.wait_line(|line| line == "ended: sh was ended by SIGKILL", SOON);
    // Told 2.5 s before the deadline, which is 1 s before the end of the lease: then a successor may begin.
    let last_step = a.lines().into_iter().rfind(|line| line.text == "step").expect("a step");
    assert!(last_step.at < stopping.at + Duration::from_millis(3500), "{}", a.transcript());
    server.resume();
    assert!(wait_leading(&a, 2) > first);
}

/// kubernetes #125530: a connection that died without a word costs one call, not the term.
#[test]
fn k8s_125530_dead_connections_cost_no_term() {
    let (world, server) = (World::new(), server());
    prepare(&server);
    let relay = Relay::to(&server.endpoint());
    let user = json!({ "token": Kubernetes::token(ADMIN) });
    let file = server.write_kubeconfig("relayed", &relay.addr(), &user);
    let on = format!("kubernetes:?kubeconfig={}", file.display());
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
        assert!(
            a.try_wait().is_none() && a.lines().iter().filter(|line| is_leading(&line.text)).count() == 1
        );
        assert!(!a.lines().iter().any(|line| line.text.starts_with("lost")), "{}", a.transcript());
    }
    a.signal(Signal::TERM);
    wait_leading(&b, 1);
}

#[test]
fn a_server_that_is_not_there_is_told_at_once_and_waited_for() {
    let (world, mut server) = (World::new(), server());
    prepare(&server);
    server.kill();
    let (status, _, err) = ended(&world.run(&["--on", &server.url(), "--no-wait", TTL], JOB));
    assert_eq!(status, 125, "--no-wait does not wait for a store either: {err}");
    let a = candidate(&world, &server, "a");
    a.wait_line(|line| line.starts_with("warning: ") && line.ends_with("; trying again"), SOON);
    assert_eq!(a.try_wait(), None);
    server.restart();
    wait_leading(&a, 1);
    // The API server restarts under a leader that has time enough.
    server.restart();
    std::thread::sleep(Duration::from_secs(2));
    let b = candidate(&world, &server, "b");
    wait_standby(&b);
}

/// What is wrong with the URL or the kubeconfig needs no server to be told.
#[test]
fn a_url_that_cannot_work_is_an_error_at_once() {
    let world = World::new();
    let garbage = world.path("garbage");
    std::fs::write(&garbage, "not: [a kubeconfig").expect("a file");
    let empty = world.path("empty");
    std::fs::write(&empty, "{}").expect("a file");
    for (url, hint) in [
        ("kubernetes://127.0.0.1:6443".to_owned(), "has no host"),
        ("kubernetes:Prod".to_owned(), "is no namespace"),
        ("kubernetes:a/b".to_owned(), "is no namespace"),
        ("kubernetes:?kubeconfg=x".to_owned(), "did you mean kubeconfig?"),
        ("kubernetes:?kubeconfig=/no/such/file".to_owned(), "/no/such/file"),
        (format!("kubernetes:?kubeconfig={}", garbage.display()), "kubeconfig cannot be used"),
        (format!("kubernetes:?kubeconfig={}", empty.display()), "kubeconfig cannot be used"),
        ("kubernetes:".to_owned(), "kubeconfig cannot be used"),
        ("kubernetes:?ttl=3s".to_owned(), "below the shortest"),
    ] {
        let (status, out, err) = ended(&world.run(&["--on", &url], "echo started"));
        assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
        assert!(err.contains(hint), "{url}: {err}");
    }
}

#[test]
fn names_that_no_lease_can_have_are_refused() {
    let (world, server) = (World::new(), server());
    for name in ["Billing", "bil_ling", "billing-", "billing.checkpoint.incumbent"] {
        let (status, _, err) = world.output(&["run", name, "--on", &server.url(), "--", "true"]);
        assert_eq!(status, 125, "{name}: {err}");
        assert!(err.contains("the election name"), "{name}: {err}");
    }
    let longest = "x".repeat(128);
    server.create_lease(&json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": longest },
        "spec": { "renewTime": "2026-01-01T00:00:00.000000Z" },
    }));
    let id = "i".repeat(128);
    let (status, _, err) =
        world.output(&["run", &longest, "--id", &id, "--on", &server.url(), "--", "sh", "-c", "exit 7"]);
    assert_eq!(status, 7, "{err}");
}

/// Wrong credentials and TLS are fatal before the first term, and no error shows a secret.
#[test]
fn a_refusal_is_fatal_before_the_first_term() {
    let (world, server) = (World::new(), server());
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
        let url = format!("kubernetes:?kubeconfig={}", file.display());
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL, "-vv"], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{user}: {err}");
        assert!(err.contains(hint), "{user}: {err}");
        assert!(!err.contains("hunter2"), "{user}: {err}");
    }
    let other = testkit::Certificates::make(&world.path(""));
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
        let url = format!("kubernetes:?kubeconfig={}", path.display());
        let (status, out, err) = ended(&world.run(&["--on", &url, TTL], JOB));
        assert_eq!((status, out.as_str()), (125, ""), "{scheme}: {err}");
        assert!(err.contains(hint), "{scheme}: {err}");
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
    let (world, server) = (World::new(), server());
    prepare(&server);
    let answer = credential(&Kubernetes::token(ADMIN), "2090-01-01T00:00:00Z");
    let plugin = exec(&format!("echo '{answer}'"));
    let file = server.write_kubeconfig("plugin", &server.endpoint(), &plugin);
    let url = format!("kubernetes:?kubeconfig={}", file.display());
    assert_eq!(code(&world.run(&["--on", &url, TTL], "exit 5")), 5);
    // The user `client` of the certificate may do nothing yet.
    let certificates = server.certificates();
    let user =
        json!({ "client-certificate": certificates.client_cert, "client-key": certificates.client_key });
    let file = server.write_kubeconfig("certificate", &server.endpoint(), &user);
    let url = format!("kubernetes:?kubeconfig={}", file.display());
    let (status, _, err) = ended(&world.run(&["--on", &url, TTL], "exit 5"));
    assert_eq!(status, 125, "{err}");
    assert!(err.contains("\"client\"") && err.contains("grant the verb get on leases"), "{err}");
}

/// The Role in the documentation, as YAML for kubectl.
fn documented_role() -> String {
    let page = include_str!("../../docs/backends/kubernetes.md");
    let (_, rest) = page.split_once("```yaml\n").expect("the page shows a Role");
    rest.split_once("```").expect("its end").0.to_owned()
}

fn bind(server: &Kubernetes, role: &str) {
    server.kubectl_ok(&["apply", "-f", "-"], role);
    let bound = server.kubectl(
        &["create", "rolebinding", "incumbent", "--role=incumbent-billing", "--user", CANDIDATE],
        "",
    );
    let text = String::from_utf8_lossy(&bound.stderr);
    assert!(bound.status.success() || text.contains("already exists"), "{text}");
}

/// The rights that the documentation lists are all that is needed, and each of them is.
#[test]
fn the_documented_rights_are_enough_and_a_missing_one_is_named() {
    let (world, server) = (World::new(), server());
    let on = server.url_as(CANDIDATE);
    let (status, _, err) = ended(&world.run(&["--on", &on, TTL], JOB));
    assert_eq!(status, 125, "{err}");
    assert!(
        err.contains("grant the verb get on leases of coordination.k8s.io in the namespace default"),
        "{err}"
    );

    bind(&server, &documented_role());
    let script = "echo \"leading $INCUMBENT_TOKEN\"; echo kept | \"$INCUMBENT\" checkpoint put && \
                  \"$INCUMBENT\" checkpoint get; exec sleep 600";
    // The Role may take a moment to count.
    std::thread::sleep(Duration::from_secs(1));
    let a = world.run(&["--on", &on, "--id=a", TTL], script);
    wait_leading(&a, 1);
    a.wait_line(|line| line == "kept", SOON);
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
        let less = documented_role()
            .replace(&format!("\"{verb}\", "), "")
            .replace(&format!("[\"{verb}\"]"), "[\"list\"]");
        bind(&server, &less);
        std::thread::sleep(Duration::from_secs(1));
        if verb == "create" {
            server.delete_lease("billing");
        }
        let (status, _, err) = ended(&world.run(&["--on", &on, "--no-wait", "--id=c", TTL], JOB));
        assert_eq!(status, 125, "without {verb}: {err}");
        assert!(err.contains(&format!("grant the verb {verb} on leases")), "without {verb}: {err}");
    }
}

/// Without the right to watch there is still a hand-over, later.
#[test]
fn without_the_right_to_watch_standbys_look_by_themselves() {
    let (world, server) = (World::new(), server());
    prepare(&server);
    bind(&server, &documented_role().replace(", \"watch\"", ""));
    std::thread::sleep(Duration::from_secs(1));
    let on = server.url_as(CANDIDATE);
    let a = world.run(&["--on", &on, "--id=a", "--ttl=10s"], JOB);
    wait_leading(&a, 1);
    let b = world.run(&["--on", &on, "--id=b", "--ttl=10s", "-v"], JOB);
    wait_standby(&b);
    b.wait_line(|line| line.contains("grant the verb watch on leases"), SOON);
    a.signal(Signal::TERM);
    wait_leading(&b, 1);
}

#[test]
fn status_observe_transfer_resign_and_checkpoint() {
    let (world, server) = (World::new(), server());
    prepare(&server);
    let on = server.url();
    let script = "echo \"leading $INCUMBENT_TOKEN\"; echo kept by \"$INCUMBENT_ID\" | \"$INCUMBENT\" checkpoint put; \
                  exec sleep 600";
    let a = world.run(&["--on", &on, "--id=a", TTL], script);
    let first = wait_leading(&a, 1);
    let observer = Proc::spawn(world.incumbent(&["observe", "billing", "--on", &on, "--json"]));
    observer.wait_line(|line| line.contains("\"a\""), SOON);
    let (status, out, err) = world.output(&["status", "billing", "--on", &on, "--json"]);
    assert_eq!(status, 0, "{err}");
    let answer: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&answer["leader"]["id"], &answer["leader"]["token"]), (&json!("a"), &json!(first)), "{out}");
    let others = ["b", "c"].map(|id| {
        let process = candidate(&world, &server, id);
        wait_standby(&process);
        process
    });
    let (status, _, err) = world.output(&["transfer", "billing", "--on", &on, "--to=c"]);
    assert_eq!(status, 0, "{err}");
    let second = wait_leading(&others[1], 1);
    assert!(second > first);
    observer.wait_line(|line| line.contains("\"c\""), SOON);
    let (status, _, err) = world.output(&["resign", "billing", "--on", &on]);
    assert_eq!(status, 0, "{err}");
    let third = testkit::wait_until(SOON, || {
        let (_, out, _) = world.output(&["status", "billing", "--on", &on, "--json"]);
        let answer: Value = serde_json::from_str(&out).unwrap_or_default();
        answer["leader"]["token"].as_u64().is_some_and(|token| token > second)
    });
    assert!(third, "nobody followed");
    let (status, out, err) = world.output(&["doctor", "--on", &on]);
    assert_eq!(status, 0, "{out}{err}");
    let (_, out, _) = world.output(&["status", "nobody-yet", "--on", &on]);
    assert!(out.contains("nobody"), "{out}");
}

/// As in a Pod: a service account that was made for it, its token, authority and namespace in the files where a Pod finds them.
#[test]
fn in_a_pod_the_service_account_is_used() {
    testkit::require(testkit::Capability::MountNs);
    let (world, server) = (World::new(), server());
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
    server.kubectl_ok(&["apply", "--namespace=shop", "-f", "-"], &documented_role());
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
    let lease = "/apis/coordination.k8s.io/v1/namespaces/shop/leases/billing";
    server.kubectl_ok(&["get", "--raw", lease], "");
}
