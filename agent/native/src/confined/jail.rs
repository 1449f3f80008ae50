//! Drops the privileges of a process before it reads an untrusted file: of the confined child, or of a debugger.

use std::ffi::{OsStr, OsString};
use std::io::{Error, Result};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::arch::{NATIVE, host};

/// Limits on CPU time in seconds, and on private memory in bytes. Compressed debug information is decompressed
/// into this memory; other debug information is mapped, and needs 25 MiB.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// CPU time.
    pub cpu_s: u64,
    /// Private memory.
    pub data_bytes: u64,
}

/// The limits for a file that root owns, and for inlined calls in any file.
pub const TRUSTED: Limits = Limits { cpu_s: 60, data_bytes: 1536 << 20 };
/// The limits for reading the types in any other file. The largest server, with 300 MB of debug information,
/// needs a quarter of this CPU time and, if its debug information is compressed, 235 MiB of memory. Together
/// with the sensor (166 MB), the child stays below the unit's `MemoryHigh`.
pub const UNTRUSTED: Limits = Limits { cpu_s: 12, data_bytes: 288 << 20 };

/// Limit on a debugger's CPU time in seconds.
const DEBUGGER_CPU_S: u64 = 120;

const BPF_LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const BPF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const BPF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const BPF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const BPF_RETURN: u16 = 0x06;
/// Offsets of the fields in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;
const THIRD_ARGUMENT: u32 = 32;
/// The lowest system call number of the x32 ABI. The ABI has the same architecture value as x86-64, so its
/// numbers would bypass a list of denied system calls.
const X32: u32 = 0x4000_0000;

/// System calls that the confined child may make. They open no files or sockets, and do not affect other processes.
const ALLOWED: [libc::c_long; 22] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // statx is needed for open descriptors; with a path, it can reveal only a file's metadata
    libc::SYS_statx,
];
/// Further system calls that the confined child may make, unless the third argument requests executable memory.
const NOT_EXECUTABLE: [libc::c_long; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// System calls that are denied because a debugger can read a file without them: network, other processes,
/// namespaces, mounts, kernel interfaces.
const DENIED: &[libc::c_long] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_open_by_handle_at,
    libc::SYS_chroot,
    libc::SYS_truncate,
];
/// System calls whose arguments a filter cannot inspect. They fail with ENOSYS, so the C library falls back to
/// older system calls.
const UNSUPPORTED: [libc::c_long; 2] = [libc::SYS_clone3, libc::SYS_openat2];
/// Argument bits that a debugger must not pass, as (system call, offset of the argument, bits). Such calls
/// would create namespaces, in which the debugger has all capabilities; open files for writing, such as
/// another process's memory; or change limits of other processes.
const DENIED_BITS: &[(libc::c_long, u32, libc::c_int)] = &[
    (libc::SYS_clone, FIRST_ARGUMENT, NEW_NAMESPACE),
    (libc::SYS_openat, THIRD_ARGUMENT, OPEN_TO_WRITE),
    (libc::SYS_prlimit64, FIRST_ARGUMENT, -1),
];
const OPEN_TO_WRITE: libc::c_int = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
const NEW_NAMESPACE: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// Limit on a debugger's address space in bytes: gdb needs 0.5 GB for 300 MB of debug information.
const DEBUGGER_BYTES: u64 = 4 << 30;
/// The user id and group id of `nobody`, which owns no files.
const NOBODY: u32 = 65534;

/// Replace this process with an external program, such as gdb, that reads an untrusted file. The program has no
/// capabilities, no network, and no access to other processes. If this process is root, the program runs as
/// `nobody`, so it can open only world-readable files.
///
/// # Errors
/// Returns an error if the kernel refuses a restriction or cannot execute the program.
pub fn become_program(program: &OsStr, arguments: &[OsString]) -> Error {
    match confine_program() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}

fn confine_program() -> Result<()> {
    become_first_oom_victim();
    limit(libc::RLIMIT_CPU, DEBUGGER_CPU_S)?;
    limit(libc::RLIMIT_AS, DEBUGGER_BYTES)?;
    limit(libc::RLIMIT_FSIZE, 0)?;
    limit(libc::RLIMIT_CORE, 0)?;
    limit(libc::RLIMIT_NOFILE, 256)?;
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: with a count of 0 the kernel does not read the pointer.
        checked(unsafe { libc::setgroups(0, std::ptr::null()) })?;
        // SAFETY: setresgid takes numbers only.
        checked(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) })?;
        // SAFETY: setresuid takes numbers only.
        checked(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) })?;
    }
    // SAFETY: this prctl takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    drop_capabilities()?;
    make_files_read_only();
    load_filter(&deny_filter())
}

/// Use Landlock (Linux 5.13) to forbid writing, creating, removing and renaming files, and access to the memory
/// of other processes through /proc. Errors are ignored: on older kernels, only the seccomp filter prevents
/// opening files for writing.
fn make_files_read_only() {
    #[repr(C)]
    struct RulesetAttr {
        handled_access_fs: u64,
    }
    /// `LANDLOCK_ACCESS_FS_` flags of the first ABI version: WRITE_FILE, and REMOVE_DIR to MAKE_SYM.
    const WRITES: u64 = 1 << 1 | 0x1ff0;
    let attributes = RulesetAttr { handled_access_fs: WRITES };
    // SAFETY: the pointer and size describe a local structure that the kernel only reads.
    let ruleset = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size_of::<RulesetAttr>(), 0)
    };
    if ruleset >= 0 {
        // SAFETY: the system call takes numbers only.
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) };
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        unsafe { libc::close(ruleset as i32) };
    }
}

fn deny_filter() -> Vec<libc::sock_filter> {
    let mut program = filter_start();
    for &number in DENIED.iter().chain(&host::SYS_CREAT) {
        program.extend([skip_unless(BPF_EQUAL, number as u32), fail(libc::EPERM)]);
    }
    for number in UNSUPPORTED {
        program.extend([skip_unless(BPF_EQUAL, number as u32), fail(libc::ENOSYS)]);
    }
    let opens = host::SYS_OPEN.map(|number| (number, SECOND_ARGUMENT, OPEN_TO_WRITE));
    for &(number, argument, bits) in DENIED_BITS.iter().chain(&opens) {
        program.extend(without_bits(number, argument, bits, fail(libc::EPERM)));
    }
    program.push(statement(BPF_RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// Irrevocably restrict this process to reading and writing open files, and limit its resources.
///
/// # Errors
/// Returns an error if the kernel refuses a restriction. The caller must then not read the file.
pub fn enter(limits: Limits) -> Result<()> {
    become_first_oom_victim();
    // At the soft limit, the kernel sends SIGXCPU, which shows the parent the reason. At the hard limit, it
    // sends SIGKILL.
    set_limits(libc::RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1)?;
    for (resource, max) in [
        (libc::RLIMIT_DATA, limits.data_bytes),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_NPROC, 0),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_NOFILE, 0),
    ] {
        limit(resource, max)?;
    }
    // SAFETY: this prctl takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    drop_capabilities()?;
    load_filter(&allow_filter())
}

fn limit(resource: libc::__rlimit_resource_t, max: u64) -> Result<()> {
    set_limits(resource, max, max)
}

fn set_limits(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the pointer is to a local rlimit.
    checked(unsafe { libc::setrlimit(resource, &raw const limit) })
}

/// Make this process the OOM killer's first choice and lower its priority. Errors are ignored, because safety
/// does not depend on these settings.
fn become_first_oom_victim() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // SAFETY: setpriority takes numbers only.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// Drop the permitted, effective and inheritable capabilities. This drops the ambient ones too.
fn drop_capabilities() -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0_u32];
    let none = [0_u32; 6];
    // SAFETY: version 3 reads a header and two elements of three words each, which is the size of the arrays.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    checked(done as i32)
}

/// Load a seccomp filter into the calling thread, which needs PR_SET_NO_NEW_PRIVS. Does not allocate memory.
pub fn load_filter(program: &[libc::sock_filter]) -> Result<()> {
    let length = u16::try_from(program.len()).map_err(Error::other)?;
    let described = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the filter, which outlives the call. The filter is loaded with prctl instead
    // of seccomp(2), because the unit's system call allow-list includes prctl.
    checked(unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const described, 0, 0)
    })
}

/// Return a filter that rejects one system call with EPERM.
pub fn reject(number: libc::c_long) -> Vec<libc::sock_filter> {
    let mut program = filter_start();
    program.extend([skip_unless(BPF_EQUAL, number as u32), fail(libc::EPERM)]);
    program.push(statement(BPF_RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn skip_unless(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 1, k }
}

/// Return the start of a filter. The filter kills the process if a system call uses another architecture or
/// the x32 ABI; otherwise, it loads the system call's number.
fn filter_start() -> Vec<libc::sock_filter> {
    vec![
        statement(BPF_LOAD, ARCHITECTURE),
        libc::sock_filter { code: BPF_EQUAL, jt: 1, jf: 0, k: NATIVE.audit },
        statement(BPF_RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        statement(BPF_LOAD, NUMBER),
        skip_unless(BPF_AT_LEAST, X32),
        statement(BPF_RETURN, libc::SECCOMP_RET_KILL_PROCESS),
    ]
}

/// Return instructions that allow a system call unless its argument has one of these bits; in that case, they
/// execute `otherwise`. Other system calls continue after these instructions.
fn without_bits(
    number: libc::c_long,
    argument: u32,
    bits: libc::c_int,
    otherwise: libc::sock_filter,
) -> [libc::sock_filter; 5] {
    [
        libc::sock_filter { code: BPF_EQUAL, jt: 0, jf: 4, k: number as u32 },
        statement(BPF_LOAD, argument),
        skip_unless(BPF_ANY_BIT, bits.cast_unsigned()),
        otherwise,
        statement(BPF_RETURN, libc::SECCOMP_RET_ALLOW),
    ]
}

fn fail(error: libc::c_int) -> libc::sock_filter {
    statement(BPF_RETURN, libc::SECCOMP_RET_ERRNO | error.cast_unsigned())
}

fn allow_filter() -> Vec<libc::sock_filter> {
    let allow = statement(BPF_RETURN, libc::SECCOMP_RET_ALLOW);
    let kill = statement(BPF_RETURN, libc::SECCOMP_RET_KILL_PROCESS);
    let mut program = filter_start();
    for number in ALLOWED {
        program.extend([skip_unless(BPF_EQUAL, number as u32), allow]);
    }
    for number in NOT_EXECUTABLE {
        program.extend(without_bits(number, THIRD_ARGUMENT, libc::PROT_EXEC, kill));
    }
    program.push(kill);
    program
}

fn checked(result: i32) -> Result<()> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
