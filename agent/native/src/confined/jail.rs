//! What a confined child gives up before it reads a byte of somebody else's file.

use std::ffi::{OsStr, OsString};
use std::io::{Error, Result};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Seconds of CPU time.
pub const CPU_S: u64 = 60;
/// Seconds of CPU time for the types in a file that does not belong to root: four times what the 300 MB of debug
/// information of the largest server take.
pub const FOREIGN_CPU_S: u64 = 12;
/// Bytes of memory that are not a mapped file: compressed debug information is unpacked there.
pub const DATA: u64 = 1536 << 20;

const BPF_LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const BPF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const BPF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const BPF_RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const THIRD_ARGUMENT: u32 = 32;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e; // AUDIT_ARCH_X86_64
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7; // AUDIT_ARCH_AARCH64

/// Calls that only move bytes between memory and what is open already, or end the process.
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
    // statx of an open descriptor; no path can be opened, so a name tells nothing but that it exists
    libc::SYS_statx,
];
/// Calls whose third argument must not ask for executable memory.
const NOT_EXECUTABLE: [libc::c_long; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// What a debugger that reads a file never needs: the network, other processes, the kernel's own interfaces.
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
/// Bytes of address space of a debugger: gdb takes 0.5 GB for 300 MB of debug information.
const DEBUGGER: u64 = 4 << 30;
/// The user and group `nobody`, who owns nothing.
const NOBODY: u32 = 65534;

/// Become a program that reads somebody else's file and is not ours, such as gdb: as `nobody` where we are root,
/// without capabilities, network, or rights over other processes. It may open what everybody may read.
///
/// # Errors
/// If the kernel refuses any part, or there is no such program: then nothing has started.
pub fn become_program(program: &OsStr, arguments: &[OsString]) -> Error {
    match confine_program() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}

fn confine_program() -> Result<()> {
    prefer_to_be_killed();
    limit(libc::RLIMIT_CPU, 2 * CPU_S)?;
    limit(libc::RLIMIT_AS, DEBUGGER)?;
    limit(libc::RLIMIT_FSIZE, 0)?;
    limit(libc::RLIMIT_CORE, 0)?;
    limit(libc::RLIMIT_NOFILE, 256)?;
    // SAFETY: has no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: no groups, so no pointer is read; then numbers only.
        checked(unsafe { libc::setgroups(0, std::ptr::null()) })?;
        // SAFETY: numbers only.
        checked(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) })?;
        // SAFETY: numbers only.
        checked(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) })?;
    }
    // SAFETY: prctl with numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    drop_capabilities()?;
    load_filter(&deny_filter())
}

fn deny_filter() -> Vec<libc::sock_filter> {
    let mut program = beginning();
    let denied = statement(BPF_RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned());
    for number in DENIED {
        program.extend([skip_unless(BPF_EQUAL, number as u32), denied]);
    }
    program.push(statement(BPF_RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// Give up every right of this process but reading and writing what is open, and all CPU time but `cpu_s` seconds.
/// There is no way back.
///
/// # Errors
/// If the kernel refuses any part: then nothing may be read.
pub fn enter(cpu_s: u64) -> Result<()> {
    prefer_to_be_killed();
    // The kernel sends SIGXCPU at the first, by which the parent knows the reason, and SIGKILL at the second.
    limit_between(libc::RLIMIT_CPU, cpu_s, cpu_s + 1)?;
    for (resource, most) in [
        (libc::RLIMIT_DATA, DATA),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_NPROC, 0),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_NOFILE, 0),
    ] {
        limit(resource, most)?;
    }
    // SAFETY: prctl with numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    drop_capabilities()?;
    load_filter(&allow_filter())
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) -> Result<()> {
    limit_between(resource, most, most)
}

fn limit_between(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the pointer is to an rlimit of ours.
    checked(unsafe { libc::setrlimit(resource, &raw const limit) })
}

/// Be the first to end where memory is short. Not a matter of safety: where it cannot be said, so be it.
fn prefer_to_be_killed() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // SAFETY: setpriority with numbers only.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// The permitted, effective and inheritable capabilities; ambient ones go with them.
fn drop_capabilities() -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0_u32];
    let none = [0_u32; 6];
    // SAFETY: the pointers are to a header and to two elements of three words, as version 3 has them.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    checked(done as i32)
}

fn load_filter(program: &[libc::sock_filter]) -> Result<()> {
    let length = u16::try_from(program.len()).map_err(Error::other)?;
    let described = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which outlives the call. prctl and not seccomp(2): a unit's allow-list
    // of system calls has it.
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

/// Kills the process at a call of another architecture, and has the number of the call at hand.
fn beginning() -> Vec<libc::sock_filter> {
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
    let mut program = beginning();
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
