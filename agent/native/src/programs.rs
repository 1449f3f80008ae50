//! Loads compiled BPF programs and creates their maps. This takes only a few system calls, whereas compiling
//! a program takes a second of CPU time in LLVM.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::error::{Error, Kind, Result};
use crate::multi;

/// The size of struct bpf_insn (linux/bpf.h): opcode, two registers of 4 bits, a 16-bit offset, a 32-bit
/// constant.
const INSTRUCTION: usize = 8;
/// `BPF_LD | BPF_IMM | BPF_DW`: load a 64-bit constant, which takes two instructions.
const LOAD_CONSTANT: u8 = 0x18;
/// `BPF_JMP | BPF_CALL`.
const CALL: u8 = 0x85;
/// `BPF_PSEUDO_MAP_FD`: the constant is a map's descriptor.
const MAP_DESCRIPTOR: u8 = 1;
/// `BPF_PSEUDO_MAP_VALUE`: the constant is a map's descriptor and stands for the address of its only value,
/// plus the offset in the second instruction.
const MAP_VALUE: u8 = 2;
/// Size of the buffer for the verifier's log. If the log is longer, the buffer contains its end (Linux 6.4 and
/// newer) or its beginning.
const LOG_BYTES: usize = 256 << 10;
const LOG_LINES: usize = 5;
/// `BPF_OBJ_NAME_LEN` without the terminating NUL.
const NAME_BYTES: usize = 15;

/// The attributes of a map, as in /proc/self/fdinfo.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The name, which is truncated to the kernel's maximum.
    pub name: String,
    /// The type: enum bpf_map_type.
    pub kind: u32,
    /// Size of a key in bytes.
    pub key_bytes: u32,
    /// Size of a value in bytes.
    pub value_bytes: u32,
    /// Maximum number of entries.
    pub entries: u32,
    /// Flags such as BPF_F_NO_PREALLOC.
    pub flags: u32,
}

/// Create an empty map. Errors: `Rights`, `Bpf`.
pub fn create_map(shape: &Shape) -> Result<OwnedFd> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: shape.flags,
        ..Default::default()
    };
    let name = kernel_name(&shape.name)?;
    // SAFETY: the name is NUL-terminated. The name and the options outlive the call.
    let descriptor = unsafe {
        libbpf_sys::bpf_map_create(
            shape.kind,
            name.as_ptr(),
            shape.key_bytes,
            shape.value_bytes,
            shape.entries,
            &raw const options,
        )
    };
    owned(descriptor).map_err(|error| failed(&error, &format!("creating the map {}", shape.name), ""))
}

/// Create an array with one value and freeze it, so that the value can never change.
///
/// Errors: `Rights`, `Bpf`, or `Internal` if the value does not have the map's size.
pub fn create_constants(shape: &Shape, value: &[u8]) -> Result<OwnedFd> {
    let doing = format!("filling the map {}", shape.name);
    if value.len() != shape.value_bytes as usize || shape.key_bytes as usize != size_of::<u32>() {
        return Err(Error::new(Kind::Internal, format!("{doing}: the value does not have the map's size")));
    }
    let map = create_map(shape)?;
    let key = 0_u32;
    // SAFETY: key and value have the map's sizes, which are checked above, and outlive the call.
    let set = unsafe {
        libbpf_sys::bpf_map_update_elem(map.as_raw_fd(), (&raw const key).cast(), value.as_ptr().cast(), 0)
    };
    // SAFETY: the descriptor is open, and the call takes no pointers.
    let done = if set < 0 { set } else { unsafe { libbpf_sys::bpf_map_freeze(map.as_raw_fd()) } };
    if done < 0 {
        return Err(failed(&io::Error::from_raw_os_error(-done), &doing, ""));
    }
    Ok(map)
}

/// The attributes by which the kernel distinguishes types of programs.
#[derive(Debug, Clone, Copy)]
struct ProgramType {
    /// The program type: enum bpf_prog_type.
    kind: u32,
    /// The expected attach type: enum bpf_attach_type; 0 for perf events.
    attach_type: u32,
    /// BTF id of the kernel function that the program attaches to; 0 if there is none.
    target: u32,
    flags: u32,
}

/// Types of uprobe programs that are attached by a perf event or by a link. The kernel treats uprobe programs as
/// kprobe programs.
const FOR_EVENTS: ProgramType =
    ProgramType { kind: libbpf_sys::BPF_PROG_TYPE_KPROBE, attach_type: 0, target: 0, flags: 0 };
const FOR_LINKS: ProgramType = ProgramType { attach_type: libbpf_sys::BPF_TRACE_UPROBE_MULTI, ..FOR_EVENTS };

/// Load a program for [`crate::uprobe::attach`]. In instructions that refer to a map, the constant is an
/// index into `maps`.
///
/// Errors: `Rights`; `Bpf` with the last lines of the verifier's log; `Internal` if the code refers to
/// anything other than maps and helpers.
pub fn load_uprobe(name: &str, code: &[u8], maps: &[RawFd]) -> Result<OwnedFd> {
    if multi::is_supported() { load_for_links(name, code, maps) } else { load_for_events(name, code, maps) }
}

/// Load a program in the same way as [`load_uprobe`], but for perf events only.
pub fn load_for_events(name: &str, code: &[u8], maps: &[RawFd]) -> Result<OwnedFd> {
    load(name, code, maps, FOR_EVENTS)
}

/// Load a program in the same way as [`load_uprobe`], but for [`multi::attach`] only.
pub fn load_for_links(name: &str, code: &[u8], maps: &[RawFd]) -> Result<OwnedFd> {
    load(name, code, maps, FOR_LINKS)
}

/// Load an iterator program, which may be sleepable; `target` is the BTF id of the iterator's function.
pub fn load_iterator(
    name: &str,
    code: &[u8],
    maps: &[RawFd],
    target: u32,
    sleepable: bool,
) -> Result<OwnedFd> {
    let program_type = ProgramType {
        kind: libbpf_sys::BPF_PROG_TYPE_TRACING,
        attach_type: libbpf_sys::BPF_TRACE_ITER,
        target,
        flags: if sleepable { libbpf_sys::BPF_F_SLEEPABLE } else { 0 },
    };
    load(name, code, maps, program_type)
}

fn load(name: &str, code: &[u8], maps: &[RawFd], program_type: ProgramType) -> Result<OwnedFd> {
    let mut code = code.to_vec();
    link(&mut code, maps).ok_or_else(|| {
        Error::new(Kind::Internal, format!("the code of {name} refers to more than maps and helpers"))
    })?;
    let label = kernel_name(name)?;
    try_load(&label, &code, program_type, &mut []).or_else(|_| {
        let mut log = vec![0_u8; LOG_BYTES]; // slow, so it is used only after a failure
        try_load(&label, &code, program_type, &mut log)
            .map_err(|error| failed(&error, &format!("loading the program {name}"), &last_lines(&log)))
    })
}

/// Load a program; if `log` is not empty, the verifier writes its log to it.
fn try_load(label: &CStr, code: &[u8], program_type: ProgramType, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        expected_attach_type: program_type.attach_type,
        attach_btf_id: program_type.target,
        prog_flags: program_type.flags,
        ..Default::default()
    };
    if !log.is_empty() {
        options.log_buf = log.as_mut_ptr().cast();
        options.log_size = log.len() as u32;
        options.log_level = 1;
    }
    // SAFETY: the name and the license are NUL-terminated. The code and the log buffer are passed with their
    // sizes. All of them and the options outlive the call. The kernel copies the instructions, so they need
    // no alignment.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            program_type.kind,
            label.as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            (code.len() / INSTRUCTION) as libbpf_sys::size_t,
            &raw mut options,
        )
    })
}

/// Replace the indexes into `maps` in the code with descriptors. Return None if the code has other
/// references that need to be resolved.
fn link(code: &mut [u8], maps: &[RawFd]) -> Option<()> {
    if !code.len().is_multiple_of(INSTRUCTION) {
        return None;
    }
    for instruction in code.chunks_exact_mut(INSTRUCTION) {
        let source = instruction[1] >> 4;
        match (instruction[0], source) {
            (LOAD_CONSTANT, MAP_DESCRIPTOR | MAP_VALUE) => {
                let index = u32::from_ne_bytes(instruction[4..].try_into().ok()?);
                let descriptor = maps.get(index as usize)?;
                instruction[4..].copy_from_slice(&descriptor.to_ne_bytes());
            }
            (LOAD_CONSTANT | CALL, 1..) => return None,
            _ => {}
        }
    }
    Some(())
}

/// Replace the descriptors of `maps` in the code with indexes: the inverse of [`link`]. Return None if the
/// code refers to other maps, or to anything but maps and helpers.
pub fn unlinked(code: &[libbpf_sys::bpf_insn], maps: &[RawFd]) -> Option<Vec<u8>> {
    let mut found = Vec::with_capacity(code.len() * INSTRUCTION);
    for one in code {
        let constant = match (one.code, one.src_reg()) {
            (LOAD_CONSTANT, MAP_DESCRIPTOR | MAP_VALUE) => {
                maps.iter().position(|map| *map == one.imm)?.try_into().ok()?
            }
            (LOAD_CONSTANT | CALL, 1..) => return None,
            _ => one.imm,
        };
        found.extend([one.code, one.src_reg() << 4 | one.dst_reg()]);
        found.extend(one.off.to_ne_bytes());
        found.extend(constant.to_ne_bytes());
    }
    Some(found)
}

fn kernel_name(name: &str) -> Result<CString> {
    let bytes = name.as_bytes();
    CString::new(&bytes[..bytes.len().min(NAME_BYTES)])
        .map_err(|_| Error::new(Kind::Internal, format!("{name:?} is not a valid name for a program or map")))
}

/// Convert the result of a libbpf function to a descriptor or an error.
pub fn owned(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: libbpf just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn failed(error: &io::Error, doing: &str, log: &str) -> Error {
    // The verifier also rejects programs with EACCES, but then it writes a log. If privileges are missing,
    // the log is empty.
    let kind = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if log.is_empty() => Kind::Rights,
        _ => Kind::Bpf,
    };
    let log = if log.is_empty() { String::new() } else { format!("\n{log}") };
    Error::new(kind, format!("{doing}: {error}{log}"))
}

/// Return the last lines of the verifier's log.
fn last_lines(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(source: u8, value: i32) -> Vec<u8> {
        let mut code = vec![LOAD_CONSTANT, source << 4 | 1, 0, 0];
        code.extend(value.to_ne_bytes());
        code.extend([0; INSTRUCTION]);
        code
    }

    #[test]
    fn map_indexes_are_replaced_by_descriptors() {
        let mut code = [constant(MAP_DESCRIPTOR, 1), constant(MAP_VALUE, 0), constant(0, 1)].concat();

        assert_eq!(link(&mut code, &[7, 9]), Some(()));
        assert_eq!(code, [constant(MAP_DESCRIPTOR, 9), constant(MAP_VALUE, 7), constant(0, 1)].concat());
    }

    #[test]
    fn linked_code_can_be_linked_to_other_maps() {
        let code =
            [instruction(LOAD_CONSTANT, MAP_DESCRIPTOR, 9), instruction(0, 0, 0), instruction(CALL, 0, 9)];

        let kept = unlinked(&code, &[7, 9]);

        assert_eq!(kept, Some([constant(MAP_DESCRIPTOR, 1), vec![CALL, 1, 0, 0, 9, 0, 0, 0]].concat()));
        assert_eq!(unlinked(&code, &[7]), None, "an unknown map");
        assert_eq!(unlinked(&[instruction(CALL, 1, 2)], &[7, 9]), None, "a function of ours");
    }

    fn instruction(code: u8, source: u8, constant: i32) -> libbpf_sys::bpf_insn {
        let mut one = libbpf_sys::bpf_insn { code, imm: constant, ..Default::default() };
        one.set_src_reg(source);
        one.set_dst_reg(u8::from(code != 0));
        one
    }

    #[test]
    fn other_references_are_refused() {
        assert_eq!(link(&mut constant(MAP_DESCRIPTOR, 2), &[7, 9]), None, "an index out of range");
        assert_eq!(link(&mut constant(MAP_DESCRIPTOR, -1), &[7, 9]), None);
        assert_eq!(link(&mut constant(3, 0), &[7]), None, "a kernel variable");
        assert_eq!(link(&mut [CALL, 0x10, 0, 0, 0, 0, 0, 0], &[]), None, "a function of ours");
        assert_eq!(link(&mut [0; 7], &[]), None, "half an instruction");
    }

    #[test]
    fn the_last_lines_of_the_log_are_returned() {
        assert_eq!(last_lines(b"1\n2\n3\n4\n5\n6\n\0\0"), "2\n3\n4\n5\n6");
        assert_eq!(last_lines(&[0; 4]), "");
    }
}
