//! Loads the snapshot program. Either libbpf relocates it (CO-RE), or the result of an earlier relocation is
//! reused.
//!
//! For the relocation, libbpf searches all of the kernel's types, which takes about 15 ms of CPU time. The
//! result depends only on the kernel build, and loading it takes 3 ms.

use std::ffi::CStr;
use std::hash::Hasher;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder};
use prost::Message;
use rustc_hash::FxHasher;

use crate::error::{Error, Kind, Result};
use crate::programs::{self, Shape};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/snapshot.bpf.o"));

const CONFIG: &str = "config";
/// The map whose size depends on the number of threads.
const COPIED: &str = "copied_at_rest";
/// The kernel's iterator type to which the program attaches.
const TARGET: &CStr = c"task";

/// Selects one of the two programs, and its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// True for the program that copies the stacks, false for the one that copies only the registers.
    pub sleepable: bool,
    /// True to copy the kernel stacks, too.
    pub kernel_stacks: bool,
}

impl Variant {
    fn program(self) -> &'static str {
        if self.sleepable { "snapshot" } else { "snapshot_nosleep" }
    }
}

/// The loaded program. The kernel keeps the program's maps alive for as long as the program is loaded.
pub struct Loaded {
    /// The program's descriptor.
    pub program: OwnedFd,
    /// The descriptor of the `config` map.
    pub config: OwnedFd,
    /// The relocated program, to be passed to [`load`] next time. None if this load already used a cached
    /// program, or if the program cannot be cached.
    pub relocated: Option<Vec<u8>>,
}

/// The relocated program, which can be cached for one kernel build.
#[derive(Clone, PartialEq, Message)]
struct RelocatedProgram {
    /// Hash of the object file that the program was extracted from.
    #[prost(fixed64, tag = "1")]
    object: u64,
    #[prost(bool, tag = "2")]
    kernel_stacks: bool,
    /// BTF id of the kernel function that the program is attached to.
    #[prost(uint32, tag = "3")]
    target: u32,
    /// An array of struct bpf_insn. References to maps are indexes into `maps`.
    #[prost(bytes = "vec", tag = "4")]
    code: Vec<u8>,
    #[prost(message, repeated, tag = "5")]
    maps: Vec<CachedMap>,
    #[prost(bool, tag = "6")]
    sleepable: bool,
}

#[derive(Clone, PartialEq, Message)]
struct CachedMap {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(uint32, tag = "3")]
    key_bytes: u32,
    #[prost(uint32, tag = "4")]
    value_bytes: u32,
    #[prost(uint32, tag = "5")]
    entries: u32,
    #[prost(uint32, tag = "6")]
    flags: u32,
    /// The only value of a map of constants, which is read-only.
    #[prost(bytes = "vec", optional, tag = "7")]
    constants: Option<Vec<u8>>,
}

/// Load a program that can remember `threads` threads between snapshots. `cached` is [`Loaded::relocated`] of
/// an earlier load on the same kernel build.
///
/// Errors: `Rights` without CAP_BPF and CAP_PERFMON (or root); `Bpf`, with the last lines of the verifier's
/// log, if the kernel lacks BTF or iterators of this kind.
pub fn load(variant: Variant, cached: Option<&[u8]>, threads: u32) -> Result<Loaded> {
    let program = cached
        .and_then(|bytes| RelocatedProgram::decode(bytes).ok())
        .filter(|program| program.object == object_hash() && program.variant() == variant);
    match program.map(|program| load_cached(&program, threads)) {
        Some(Ok(loaded)) => Ok(loaded),
        _ => relocate(variant, threads), // if this fails too, its error is reported
    }
}

fn object_hash() -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(OBJECT);
    hasher.finish()
}

fn load_cached(cached: &RelocatedProgram, threads: u32) -> Result<Loaded> {
    let maps = cached.maps.iter().map(|map| map.make(threads)).collect::<Result<Vec<OwnedFd>>>()?;
    let descriptors: Vec<RawFd> = maps.iter().map(AsRawFd::as_raw_fd).collect();
    let program = programs::load_iterator(
        cached.variant().program(),
        &cached.code,
        &descriptors,
        cached.target,
        cached.sleepable,
    )?;
    let config = cached.maps.iter().zip(maps).find(|(map, _)| map.name == CONFIG);
    let (_, config) = config.ok_or_else(missing_config)?;
    Ok(Loaded { program, config, relocated: None })
}

impl RelocatedProgram {
    fn variant(&self) -> Variant {
        Variant { sleepable: self.sleepable, kernel_stacks: self.kernel_stacks }
    }
}

impl CachedMap {
    fn make(&self, threads: u32) -> Result<OwnedFd> {
        let shape = Shape {
            name: self.name.clone(),
            kind: self.kind,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            entries: if self.name == COPIED { threads } else { self.entries },
            flags: self.flags,
        };
        match &self.constants {
            Some(constants) => programs::create_constants(&shape, constants),
            None => programs::create_map(&shape),
        }
    }
}

fn relocate(variant: Variant, threads: u32) -> Result<Loaded> {
    let object = load_by_libbpf(variant, threads)?;
    let name = variant.program();
    let program = object
        .progs()
        .find(|program| program.name() == name)
        .ok_or_else(|| Error::new(Kind::Internal, format!("the object has no program named {name}")))?;
    let config = object.maps().find(|map| map.name() == CONFIG).ok_or_else(missing_config)?;
    let owned = |descriptor: BorrowedFd<'_>| {
        descriptor.try_clone_to_owned().map_err(|error| {
            Error::new(Kind::Internal, format!("a descriptor of the snapshot program: {error}"))
        })
    };
    Ok(Loaded {
        program: owned(program.as_fd())?,
        config: owned(config.as_fd())?,
        relocated: extract(&object, &program, variant).map(|program| program.encode_to_vec()),
    })
}

fn missing_config() -> Error {
    Error::new(Kind::Internal, "the snapshot program has no map named config")
}

fn load_by_libbpf(variant: Variant, threads: u32) -> Result<libbpf_rs::Object> {
    // libbpf prints to stderr by default. The returned error contains everything that matters.
    libbpf_rs::set_print(None);
    let failed = |error: libbpf_rs::Error| {
        let kind = match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Kind::Rights,
            _ => Kind::Bpf,
        };
        Error::new(kind, format!("loading the snapshot program: {error}"))
    };
    let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(failed)?;
    if let Some(mut copied) = open.maps_mut().find(|map| map.name() == COPIED) {
        copied.set_max_entries(threads).map_err(failed)?;
    }
    for mut program in open.progs_mut() {
        let is_wanted = program.name() == variant.program();
        program.set_autoload(is_wanted);
    }
    if variant.kernel_stacks {
        let mut rodata = open
            .maps_mut()
            .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
            .ok_or_else(|| Error::new(Kind::Internal, "the snapshot program has no .rodata"))?;
        rodata.set_initial_value(&[1]).map_err(failed)?;
    }
    open.load().map_err(failed)
}

/// Extract the relocated program. Return None if the program needs something that only libbpf can link.
fn extract(
    from: &libbpf_rs::Object,
    program: &libbpf_rs::Program<'_>,
    variant: Variant,
) -> Option<RelocatedProgram> {
    // SAFETY: TARGET is a NUL-terminated string that outlives the call.
    let target =
        unsafe { libbpf_sys::libbpf_find_vmlinux_btf_id(TARGET.as_ptr(), libbpf_sys::BPF_TRACE_ITER) };
    let maps: Vec<_> = from.maps().collect();
    let descriptors: Vec<RawFd> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
    Some(RelocatedProgram {
        object: object_hash(),
        sleepable: variant.sleepable,
        kernel_stacks: variant.kernel_stacks,
        target: u32::try_from(target).ok()?,
        code: programs::unlinked(program.insns(), &descriptors)?,
        maps: maps.iter().map(|map| cached_map(map)).collect::<Option<_>>()?,
    })
}

fn cached_map(map: &libbpf_rs::Map<'_>) -> Option<CachedMap> {
    let info = map.info().ok()?.info;
    let constants = if info.map_flags & libbpf_sys::BPF_F_RDONLY_PROG == 0 {
        None
    } else {
        Some(map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()??)
    };
    Some(CachedMap {
        name: map.name().to_str()?.to_owned(),
        kind: info.type_,
        key_bytes: info.key_size,
        value_bytes: info.value_size,
        entries: info.max_entries,
        flags: info.map_flags,
        constants,
    })
}
