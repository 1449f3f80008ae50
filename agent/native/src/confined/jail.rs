//! Drops the privileges of a confined child before it reads an untrusted file.

use std::ffi::{OsStr, OsString};
use std::io::{Error, Result};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Limit of CPU time in seconds: 300 MB of debug information take 3.
pub const CPU_S: u64 = 60;
/// Limit of private memory in bytes, into which compressed debug information is unpacked.
pub const DATA_BYTES: u64 = 1536 << 20;

const BPF_LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const BPF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const BPF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const BPF_RETURN: u16 = 0x06;
/// Offsets of fields in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const THIRD_ARGUMENT: u32 = 32;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64

/// System calls that only move bytes between memory and open files, or end the process.
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
    // for statx of open descriptors; with a path it can only reveal that the file exists
    libc::SYS_statx,
];
/// System calls whose third argument must not request executable memory.
const NOT_EXECUTABLE: [libc::c_long; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// System calls that a debugger never needs to read a file: network, other processes, kernel interfaces.
const DENIED: [libc::c_long; 22] = [
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_open_by_handle_at,
    libc::SYS_chroot,
];
/// Limit of a debugger's address space in bytes: gdb takes 0.5 GB for 300 MB of debug information.
const DEBUGGER_BYTES: u64 = 4 << 30;
/// The ids of the user and group `nobody`, which own nothing.
const NOBODY: u32 = 65534;

/// Replace this process by an external program, such as gdb, that reads an untrusted file. It runs as
/// `nobody` if we are root, without capabilities, network, or rights over other processes. It can open only
/// files that everybody can read.
///
/// # Errors
/// If the kernel refuses any restriction, or the program does not exist. The program is then not started.
pub fn become_program(program: &OsStr, arguments: &[OsString]) -> Error {
    match confine_program() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}

fn confine_program() -> Result<()> {
    become_first_oom_victim();
    limit(libc::RLIMIT_CPU, 2 * CPU_S)?;
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
    load_filter(&deny_filter())
}

fn deny_filter() -> Vec<libc::sock_filter> {
    let mut program = filter_start();
    let denied = statement(BPF_RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned());
    for number in DENIED {
        program.extend([skip_unless(BPF_EQUAL, number as u32), denied]);
    }
    program.push(statement(BPF_RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// Irrevocably drop all rights of this process except to read and write open files.
///
/// # Errors
/// If the kernel refuses any restriction. The caller must then not read the file.
pub fn enter() -> Result<()> {
    become_first_oom_victim();
    for (resource, max) in [
        (libc::RLIMIT_CPU, CPU_S),
        (libc::RLIMIT_DATA, DATA_BYTES),
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
    let limit = libc::rlimit { rlim_cur: max, rlim_max: max };
    // SAFETY: the pointer is to a local rlimit.
    checked(unsafe { libc::setrlimit(resource, &raw const limit) })
}

/// Become the first victim of the OOM killer and run at low priority. Errors are ignored: safety does not
/// depend on it.
fn become_first_oom_victim() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // SAFETY: setpriority takes numbers only.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// Drop the permitted, effective and inheritable capabilities, which drops ambient ones too.
fn drop_capabilities() -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0_u32];
    let none = [0_u32; 6];
    // SAFETY: version 3 reads a header and two elements of three words each, and the arrays have that size.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    checked(done as i32)
}

fn load_filter(program: &[libc::sock_filter]) -> Result<()> {
    let length = u16::try_from(program.len()).map_err(Error::other)?;
    let described = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the filter, which outlives the call. It is loaded by prctl and not by
    // seccomp(2), because systemd's system call allow-list for the unit includes prctl.
    checked(unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const described, 0, 0)
    })
}

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn skip_unless(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 1, k }
}

/// Start a filter: kill the process for a system call of another architecture, then load the number of the
/// call.
fn filter_start() -> Vec<libc::sock_filter> {
    vec![
        statement(BPF_LOAD, ARCHITECTURE),
        libc::sock_filter { code: BPF_EQUAL, jt: 1, jf: 0, k: NATIVE },
        statement(BPF_RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        statement(BPF_LOAD, NUMBER),
    ]
}

fn allow_filter() -> Vec<libc::sock_filter> {
    let allow = statement(BPF_RETURN, libc::SECCOMP_RET_ALLOW);
    let kill = statement(BPF_RETURN, libc::SECCOMP_RET_KILL_PROCESS);
    let mut program = filter_start();
    for number in ALLOWED {
        program.extend([skip_unless(BPF_EQUAL, number as u32), allow]);
    }
    for number in NOT_EXECUTABLE {
        program.extend([
            libc::sock_filter { code: BPF_EQUAL, jt: 0, jf: 4, k: number as u32 },
            statement(BPF_LOAD, THIRD_ARGUMENT),
            skip_unless(BPF_ANY_BIT, libc::PROT_EXEC as u32),
            kill,
            allow,
        ]);
    }
    program.push(kill);
    program
}

fn checked(result: i32) -> Result<()> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
