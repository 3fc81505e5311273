//! Turns `proto/etcd.proto` into the committed Rust file, without protoc and without a build script.

use std::fmt::Write as _;
use std::path::Path;

use prost_build::{Config, Module, Service, ServiceGenerator};

/// Where the generated file is committed, from the workspace root.
pub(crate) const TARGET: &str = "incumbent/src/backend/etcd/generated.rs";

/// The text that [`TARGET`] must have.
pub(crate) fn generate() -> String {
    let proto_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let descriptors = protox::compile(["etcd.proto"], [proto_dir]).expect("proto/etcd.proto compiles");
    let mut config = Config::new();
    // Comments in the .proto file are for its readers; rustdoc would take them for doc tests.
    config.disable_comments(["."]).service_generator(Box::new(RpcImpls));
    let module = Module::from_protobuf_package_name("etcdserverpb");
    let requests = descriptors.file.into_iter().map(|file| (module.clone(), file)).collect();
    let modules = config.generate(requests).expect("code is generated");
    modules.into_values().collect()
}

/// Brings [`TARGET`] up to date.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write() -> std::io::Result<()> {
    std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(TARGET), generate())
}

/// Writes, instead of client code, one line of facts per call: the client's own generic call does the rest.
struct RpcImpls;

impl ServiceGenerator for RpcImpls {
    fn generate(&mut self, service: Service, out: &mut String) {
        for method in service.methods {
            writeln!(
                out,
                "impl Rpc for {request} {{ type Response = {response}; const PATH: &'static str = \"/{package}.{service}/{method}\"; }}
                 impl Headed for {response} {{ fn header(&self) -> Option<&ResponseHeader> {{ self.header.as_ref() }} }}",
                request = method.input_type,
                response = method.output_type,
                package = service.package,
                service = service.proto_name,
                method = method.proto_name,
            )
            .expect("writing to a string cannot fail");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_file_is_what_the_proto_file_says() {
        let committed =
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../incumbent/src/backend/etcd/generated.rs"));
        assert!(committed == super::generate(), "{} is out of date: run `cargo xtask fix`", super::TARGET);
    }
}
