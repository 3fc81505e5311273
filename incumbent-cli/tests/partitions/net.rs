//! A bridge and five network name spaces on it. Nothing of it is seen from outside, and it is gone with its processes.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use testkit::{Capability, wait_until};

use crate::harness::SOON;

pub(crate) const SIZE: usize = 5;

pub(crate) struct Net {
    _bridge: Space,
    nodes: Vec<Space>,
}

/// A name space, kept by a process that does nothing.
struct Space(Child);

impl Space {
    fn new() -> Space {
        let mut unshare = Command::new("unshare");
        let child = unshare.args(["--net", "sleep", "infinity"]).spawn().expect("unshare starts");
        let space = Space(child);
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let pid = space.pid();
        assert!(
            wait_until(SOON, || of(&pid).is_some_and(|there| Some(there) != of("self"))),
            "no name space"
        );
        space
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Has `ip` do all these lines here.
    fn ip(&self, lines: &str) {
        let mut ip = Command::new("nsenter");
        ip.args(["--net", "--target", &self.pid(), "ip", "-batch", "-"]).stdin(Stdio::piped());
        let mut child = ip.spawn().expect("nsenter starts");
        child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
        assert!(child.wait().expect("ended").success(), "ip refuses: {lines}");
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Net {
    pub(crate) fn start() -> Net {
        testkit::require(Capability::Root);
        testkit::require(Capability::NetNs);
        let bridge = Space::new();
        bridge.ip("link add br0 type bridge\nlink set br0 up\n");
        let nodes: Vec<Space> = (0..SIZE).map(|n| attached(&bridge, n)).collect();
        let net = Net { _bridge: bridge, nodes };
        net.part(&|_, _| true);
        net
    }

    pub(crate) fn address(node: usize) -> String {
        format!("10.77.0.{}", node + 1)
    }

    /// From now on packets reach only whom `reaches` says. What does not goes to an address that nobody has, as a cable that is cut
    /// takes it: no error tells the sender.
    pub(crate) fn part(&self, reaches: &dyn Fn(usize, usize) -> bool) {
        for (from, node) in self.nodes.iter().enumerate() {
            let line = |to: usize| {
                let there = if reaches(from, to) { hardware(to) } else { hardware(200) };
                format!("neigh replace {} lladdr {there} dev eth0 nud permanent\n", Net::address(to))
            };
            node.ip(&(0..SIZE).filter(|to| *to != from).map(line).collect::<String>());
        }
    }

    /// The same command, there.
    pub(crate) fn within(&self, node: usize, command: &Command) -> Command {
        let mut within = Command::new("nsenter");
        within.args(["--net", "--target", &self.nodes[node].pid(), "--"]);
        within.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => within.env(name, value),
                None => within.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            within.current_dir(dir);
        }
        within
    }
}

/// A name space with a cable to the bridge, and an address.
fn attached(bridge: &Space, n: usize) -> Space {
    let space = Space::new();
    let pid = space.pid();
    bridge.ip(&format!(
        "link add v{n} type veth peer name eth0 netns {pid}\nlink set v{n} master br0\nlink set v{n} up\n"
    ));
    space.ip(&format!(
        "link set lo up\nlink set eth0 address {}\naddress add {}/24 dev eth0\nlink set eth0 up\n",
        hardware(n),
        Net::address(n)
    ));
    space
}

fn hardware(node: usize) -> String {
    format!("02:00:00:00:00:{:02x}", node + 1)
}
