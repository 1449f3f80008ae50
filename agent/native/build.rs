//! Compiles the CO-RE programs for the BPF target. The object files are embedded in the extension module.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs below `probes/`. Each is compiled to `OUT_DIR/<name>.bpf.o`.
const PROGRAMS: [&str; 4] = ["snapshot/snapshot", "profile/oncpu", "profile/offcpu", "trace/trace"];

fn main() {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let probes = manifest.join("../../probes");
    for program in PROGRAMS {
        compile(&probes, program);
    }
    for folder in ["snapshot", "profile", "trace", "include"] {
        println!("cargo:rerun-if-changed={}", probes.join(folder).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");
}

fn compile(probes: &Path, program: &str) {
    let source = probes.join(format!("{program}.bpf.c"));
    let name = source.file_stem().expect("named above");
    let object = PathBuf::from(std::env::var("OUT_DIR").expect("set by cargo")).join(name);
    let libbpf = std::env::var("DEP_BPF_INCLUDE").expect("libbpf-sys exports its headers");
    let arch = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => panic!("Innoscope's core supports x86_64 and aarch64, not {other:?}"),
    };
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf"])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        // With these options, the debug information does not contain the directory of the source tree, so the
        // object file is the same, byte for byte, in every directory.
        .arg(format!("-ffile-prefix-map={}=probes", probes.display()))
        .arg(format!("-ffile-prefix-map={libbpf}=libbpf"))
        .arg("-fdebug-compilation-dir=.")
        .arg(format!("-I{libbpf}"))
        .arg(format!("-I{}", probes.join("include").display()))
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(object.with_extension("bpf.o"))
        .status()
        .unwrap_or_else(|error| panic!("cannot run {clang} ({error}): apt-get install clang"));
    assert!(status.success(), "{clang} could not compile {}", source.display());
}
