//! Compiles the snapshot program for the BPF target; the object is carried inside the extension module.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let source_dir = manifest.join("../../probes/snapshot");
    let source = source_dir.join("snapshot.bpf.c");
    let object = PathBuf::from(std::env::var("OUT_DIR").expect("set by cargo")).join("snapshot.bpf.o");
    let include = std::env::var("DEP_BPF_INCLUDE").expect("libbpf-sys exports its headers");
    let arch = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => panic!("Innoscope's core knows x86_64 and aarch64, not {other:?}"),
    };
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf"])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        .arg(format!("-I{include}"))
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {clang} ({error}): apt-get install clang"));
    assert!(status.success(), "{clang} could not compile {}", source.display());
    println!("cargo:rerun-if-changed={}", source_dir.display());
    println!("cargo:rerun-if-env-changed=CLANG");
}
