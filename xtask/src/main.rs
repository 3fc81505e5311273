//! Tasks of the incumbent workspace.

mod protos;

fn main() -> std::io::Result<()> {
    protos::write()
}
