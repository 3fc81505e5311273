//! What `fence sql --dialect=mysql` prints, in MariaDB's own shell.

use std::io::Write;
use std::process::{Command, Stdio};

use testkit::Mysql;

/// Feeds `sql` to the shell, which must take it, and gives what it printed.
fn shell(server: &Mysql, settings: &[&str], sql: &str) -> Result<String, String> {
    let mut command = server.client_command();
    let mut shell = command
        .args(settings)
        .arg("app")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the shell runs");
    let mut stdin = shell.stdin.take().expect("it was piped");
    // A shell that has failed already reads nothing.
    let _ = stdin.write_all(sql.as_bytes());
    drop(stdin);
    let output = shell.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn printed(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_incumbent"));
    let output = command.args(["fence", "sql", "--dialect=mysql"]).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Printed once more it is an upgrade. What a program runs first on each connection shows its token.
#[test]
fn the_shell_takes_what_is_printed() {
    let server = Mysql::options().start().expect("MariaDB starts");
    for _ in 0..2 {
        assert_eq!(shell(&server, &[], &printed(&[])).expect("it takes it"), "");
    }
    let raise = "CALL incumbent_fence_raise('billing', 'a', 7)";
    shell(&server, &[], raise).expect("it is new");
    let trigger = "CREATE TABLE charge (customer INT);
        CREATE TRIGGER fenced_insert BEFORE INSERT ON charge FOR EACH ROW CALL incumbent_fence_trigger('billing')";
    shell(&server, &[], trigger).expect("a trigger");
    let write = |token: u32| {
        let settings = format!("--init-command=SET @incumbent_authority = 'a', @incumbent_token = {token}");
        shell(&server, &[&settings], "INSERT INTO charge VALUES (1)")
    };
    write(7).expect("it leads");
    let stale = write(6).expect_err("it is stale");
    assert!(stale.contains("(FENCE)") && stale.contains("token 6 is older than 7"), "{stale}");

    shell(&server, &[], &printed(&["--adopt=billing", "--authority=b", "--token=3"])).expect("adopted");
    let stored = shell(&server, &["-N"], "SELECT authority, token FROM incumbent_fence").expect("a row");
    assert_eq!(stored, "b\t3");
}
