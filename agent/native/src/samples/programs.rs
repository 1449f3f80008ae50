//! Loads and attaches the programs of probes/profile. Dropping the objects detaches the programs. No program
//! outlives this process, because the kernel detaches programs when their descriptors are closed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use libbpf_rs::{Link, MapCore, MapFlags, ObjectBuilder, ProgramAttachType};
use perf_event_open_sys as sys;

use super::record::Account;
use crate::bpfmap::Map;
use crate::error::{Error, Kind, Result};
use crate::kernel_bugs;
use crate::multi;
use crate::perf_event;
use crate::snapshot::iterator_link::visit;

static ON_CPU: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/oncpu.bpf.o"));
static OFF_CPU: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/offcpu.bpf.o"));

/// The process to profile, and the options for copying its stacks.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The process id in the initial pid namespace.
    pub pid: u32,
    /// The start time of the process: field 22 of /proc/PID/stat.
    pub start_time: u64,
    /// Include kernel frames in each stack.
    pub kernel: bool,
    /// Size of the ring buffer, a power-of-two number of pages.
    pub ring_bytes: u32,
}

/// Samples the running threads of a process.
pub struct OnCpu {
    /// Dropped before the object, so that the program no longer runs when it is unloaded.
    events: Vec<OwnedFd>,
    object: libbpf_rs::Object,
    period_ns: u64,
}

impl OnCpu {
    /// Load the program. `begin` starts sampling: one sample every `period_ns` on each CPU that the process is
    /// running on.
    ///
    /// Errors: `Rights` without CAP_BPF and CAP_PERFMON (or root), `Bpf` also if a kernel bug makes it dangerous.
    pub fn new(target: Target, period_ns: u64) -> Result<Self> {
        kernel_bugs::check_user_reads()?;
        Ok(Self { events: Vec::new(), object: load(ON_CPU, target, Options::default())?, period_ns })
    }

    /// Start sampling.
    ///
    /// Errors: `Rights`, `Bpf`.
    pub fn begin(&mut self) -> Result<()> {
        let program = program(&self.object, "on_tick")?.as_fd().as_raw_fd();
        self.events = online_cpus()?
            .into_iter()
            .map(|cpu| clock(cpu, self.period_ns, program))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| Error::from_os(&error, "opening the CPUs' clock events", Kind::Bpf))?;
        Ok(())
    }

    /// Return the descriptor of the ring buffer.
    pub fn ring(&self) -> Result<RawFd> {
        descriptor(&self.object, "samples")
    }

    /// Stop sampling. Samples that are already in the ring stay there.
    pub fn end(&mut self) {
        self.events.clear();
    }

    /// Return the number of samples that were lost because the ring was full.
    pub fn lost(&self) -> Result<u64> {
        lost(&self.object)
    }
}

/// The value of MEMBARRIER_CMD_GLOBAL in linux/membarrier.h.
const MEMBARRIER_CMD_GLOBAL: i32 = 1;
/// A start time that is never reached: until it is replaced, the programs of offcpu.bpf.c follow the threads
/// but count nothing.
const NOT_STARTED: u64 = u64::MAX;
/// Lead time with which start and end times are set, so that every CPU sees them in time.
const AHEAD_NS: u64 = 2_000_000;

/// The value of `DIRECT` in statements.h.
const DIRECT: u64 = u64::MAX;
/// Number of words in `struct config` of offcpu.bpf.c.
const CONFIG_WORDS: usize = 17;
/// Position of the maximum number of stacks in `struct config`.
const MAX_STACKS: usize = 2;
/// Position of the number of statements per sampled statement in `struct config`.
const STATEMENTS: usize = 3;

/// The location of a value in the arguments of a function.
#[derive(Debug, Clone, Copy)]
pub struct ArgumentPlace {
    /// The number of the argument, from 0.
    pub number: u32,
    /// If set, the argument is a pointer to a structure that contains the value at this offset.
    pub offset: Option<u64>,
}

/// The locations of a command and of the values that describe it, in the arguments of the function that executes
/// commands.
#[derive(Debug, Clone, Copy)]
pub struct CommandPlaces {
    /// The command, a value of `enum_server_command`.
    pub command: ArgumentPlace,
    /// The address of the text.
    pub text: ArgumentPlace,
    /// The length of the text.
    pub length: ArgumentPlace,
    /// The connection's THD.
    pub thd: ArgumentPlace,
    /// The id of the prepared statement that the command executes.
    pub prepared: ArgumentPlace,
    /// The offsets in a THD of the connection's id, and of the address and length of the statement's text, if known.
    pub members: Option<[u64; 3]>,
}

/// Measures the waits of a process's threads, using scheduler events.
pub struct OffCpu {
    links: Vec<Link>,
    object: libbpf_rs::Object,
    pid: u32,
    config: [u64; CONFIG_WORDS],
}

impl OffCpu {
    /// Load and attach the programs. Call `follow` and then `begin` to start counting. If more than
    /// `max_threads` threads exist at the same time, the excess threads are not counted.
    ///
    /// Errors: `Rights` without CAP_BPF and CAP_PERFMON (or root), `Bpf` if the kernel has no BTF or lacks
    /// the scheduler's tracepoints.
    pub fn new(target: Target, max_threads: u32, commands: Option<CommandPlaces>) -> Result<Self> {
        kernel_bugs::check_user_reads()?;
        let options = Options { max_threads, statements: commands.is_some() };
        let object = load(OFF_CPU, target, options)?;
        let links = ["on_switch", "on_wakeup"]
            .into_iter()
            .map(|name| {
                let attached = program(&object, name)?.attach_trace();
                attached.map_err(|error| bpf_error(&error, "attaching to the scheduler's events"))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut config = [0; CONFIG_WORDS];
        if let Some(CommandPlaces { command, text, length, thd, prepared, members }) = commands {
            let words = [command, text, length, thd, prepared]
                .map(|one| [one.number.into(), one.offset.unwrap_or(DIRECT)]);
            let words = [words.as_flattened(), &members.unwrap_or([DIRECT; 3])].concat();
            config[STATEMENTS + 1..].copy_from_slice(&words);
        }
        Ok(Self { links, object, pid: target.pid, config })
    }

    /// Return the descriptor of the ring buffer.
    pub fn ring(&self) -> Result<RawFd> {
        descriptor(&self.object, "samples")
    }

    /// Register all threads and follow them, without counting yet. Each thread sends at most about
    /// `max_stacks` stacks per window of 134 ms.
    pub fn follow(&mut self, max_stacks: u64) -> Result<()> {
        self.config[..=MAX_STACKS].copy_from_slice(&[NOT_STARTED, 0, max_stacks.max(1)]);
        self.configure()?;
        finish_running_programs();
        self.visit_threads()
    }

    /// Start counting, and return the start time in ns of CLOCK_MONOTONIC.
    pub fn begin(&mut self) -> Result<u64> {
        self.set_ahead(0)
    }

    /// Change the approximate maximum number of stacks per thread and window of 134 ms.
    pub fn set_max_stacks(&mut self, max_stacks: u64) -> Result<()> {
        self.config[MAX_STACKS] = max_stacks.max(1);
        self.configure()
    }

    /// Sample one statement in `every`, and ignore waits outside sampled statements.
    pub fn set_statements(&mut self, every: u32) -> Result<()> {
        self.config[STATEMENTS] = every.max(1).into();
        self.configure()
    }

    /// Return the descriptor of the program for the entry of the function that executes a command, or for its
    /// return: `statement_enter` or `statement_leave`.
    pub fn statement_program(&self, name: &str) -> Result<RawFd> {
        Ok(program(&self.object, name)?.as_fd().as_raw_fd())
    }

    /// Return the number of commands since the programs were attached.
    pub fn hits(&self) -> Result<u64> {
        let map =
            Map { descriptor: descriptor(&self.object, "hits")?, key_bytes: 4, words: 1, per_cpu: true };
        let value = map.array(1).map_err(|error| Error::from_os(&error, "reading a map", Kind::Internal))?;
        Ok(value[0][0])
    }

    /// Stop counting, bring each thread's account up to the end, and return the end time in ns of
    /// CLOCK_MONOTONIC.
    pub fn end(&mut self) -> Result<u64> {
        let ended = self.set_ahead(1)?;
        thread::sleep(Duration::from_nanos(ended.saturating_sub(now()) + 1));
        self.links.clear();
        finish_running_programs();
        self.visit_threads()?;
        Ok(ended)
    }

    /// Set a start or end time that is still in the future once all programs can see it, and return this time.
    /// `word` is its position in the configuration.
    fn set_ahead(&mut self, word: usize) -> Result<u64> {
        loop {
            let time = now() + AHEAD_NS;
            self.config[word] = time;
            self.configure()?;
            if now() < time {
                return Ok(time);
            }
            // This thread was preempted for too long: the time has passed, and events were missed. Set a
            // later time.
        }
    }

    /// Run `on_visit` for each thread. A process that has exited counts as one without threads.
    fn visit_threads(&self) -> Result<()> {
        let program = program(&self.object, "on_visit")?.as_fd().as_raw_fd();
        visit(program, self.pid)
            .map_err(|error| Error::from_os(&error, "running the task iterator", Kind::Bpf))
    }

    /// Return the accounts of the threads that have not exited.
    pub fn accounts(&self) -> Result<Vec<(u32, Account)>> {
        let descriptor = descriptor(&self.object, "threads")?;
        let map = Map { descriptor, key_bytes: 4, words: Account::WORDS, per_cpu: false };
        let items = map.items().map_err(|error| Error::from_os(&error, "reading threads", Kind::Internal))?;
        Ok(items
            .iter()
            .filter_map(|(key, words)| {
                Some((u32::from_ne_bytes(key.as_slice().try_into().ok()?), Account::of(words)?))
            })
            .collect())
    }

    /// Return the number of records lost because the ring was full, plus the number of events of threads for which
    /// the map had no room.
    pub fn lost(&self) -> Result<u64> {
        lost(&self.object)
    }

    fn configure(&self) -> Result<()> {
        let value: Vec<u8> = self.config.iter().flat_map(|word| word.to_ne_bytes()).collect();
        map(&self.object, "config")?
            .update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|error| bpf_error(&error, "configuring the program"))
    }
}

/// Wait until all programs that read an earlier configuration have returned. With `nohz_full`, the kernel
/// does not support this, and the call returns immediately. That is acceptable, because the programs run for
/// only a few microseconds.
fn finish_running_programs() {
    // SAFETY: membarrier takes numbers only. It waits for an RCU grace period.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}

/// Return the time of CLOCK_MONOTONIC in ns, like bpf_ktime_get_ns().
pub(super) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local timespec. The call cannot fail with this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Options of offcpu.bpf.c.
#[derive(Clone, Copy, Default)]
struct Options {
    max_threads: u32,
    /// Load the programs that sample statements.
    statements: bool,
}

fn load(object: &[u8], target: Target, options: Options) -> Result<libbpf_rs::Object> {
    // libbpf prints to stderr by default. The returned error contains everything that matters.
    libbpf_rs::set_print(None);
    let failed = |error: libbpf_rs::Error| bpf_error(&error, "loading the profiling program");
    let mut open = ObjectBuilder::default().open_memory(object).map_err(failed)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "samples" => map.set_max_entries(target.ring_bytes).map_err(failed)?,
            "threads" => map.set_max_entries(options.max_threads).map_err(failed)?,
            name if name.ends_with(".rodata") => map.set_initial_value(&constants(target)).map_err(failed)?,
            _ => {}
        }
    }
    for mut program in open.progs_mut() {
        if program.name().to_string_lossy().starts_with("statement_") {
            program.set_autoload(options.statements);
            if multi::is_supported() {
                program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
            }
        }
    }
    open.load().map_err(failed)
}

/// Encode the variable `server` of server.h.
fn constants(target: Target) -> Vec<u8> {
    let mut bytes = target.pid.to_ne_bytes().to_vec();
    bytes.extend(u32::from(target.kernel).to_ne_bytes());
    bytes.extend(target.start_time.to_ne_bytes());
    bytes
}

fn bpf_error(error: &libbpf_rs::Error, doing: &str) -> Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => Kind::Rights,
        _ => Kind::Bpf,
    };
    Error::new(kind, format!("{doing}: {error}"))
}

fn program<'o>(object: &'o libbpf_rs::Object, name: &str) -> Result<libbpf_rs::ProgramMut<'o>> {
    let mut programs = object.progs_mut();
    let found = programs.find(|program| program.name() == name);
    found.ok_or_else(|| Error::new(Kind::Internal, format!("the object has no program named {name}")))
}

fn map<'o>(object: &'o libbpf_rs::Object, name: &str) -> Result<libbpf_rs::Map<'o>> {
    let found = object.maps().find(|map| map.name() == name);
    found.ok_or_else(|| Error::new(Kind::Internal, format!("the object has no map named {name}")))
}

fn descriptor(object: &libbpf_rs::Object, name: &str) -> Result<RawFd> {
    Ok(map(object, name)?.as_fd().as_raw_fd())
}

fn lost(object: &libbpf_rs::Object) -> Result<u64> {
    let map = Map { descriptor: descriptor(object, "lost")?, key_bytes: 4, words: 1, per_cpu: false };
    let value = map.array(1).map_err(|error| Error::from_os(&error, "reading a map", Kind::Internal))?;
    Ok(value[0][0])
}

/// Open a software clock event on one CPU, for all its tasks, and run the program each time it fires.
fn clock(cpu: i32, period_ns: u64, program: RawFd) -> io::Result<OwnedFd> {
    let event = perf_event::open(perf_event::clock(period_ns), -1, cpu)?;
    // SAFETY: both descriptors are open, and the ioctl takes no pointers.
    let set = unsafe { sys::ioctls::SET_BPF(event.as_raw_fd(), program.cast_unsigned()) };
    // SAFETY: the descriptor is open, and the ioctl takes a number.
    if set < 0 || unsafe { sys::ioctls::ENABLE(event.as_raw_fd(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(event)
}

/// List the online CPUs. /sys/devices/system/cpu/online lists them in the form `0-3,8`.
pub(crate) fn online_cpus() -> Result<Vec<i32>> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path)
        .map_err(|error| Error::from_os(&error, &format!("reading {path}"), Kind::Internal))?;
    cpus(&text).ok_or_else(|| Error::new(Kind::Internal, format!("unexpected content of {path}: {text:?}")))
}

fn cpus(text: &str) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        found.extend(first.parse::<i32>().ok()?..=last.parse().ok()?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::cpus;

    #[test]
    fn parses_cpu_lists() {
        assert_eq!(cpus("0-1\n"), Some(vec![0, 1]));
        assert_eq!(cpus("0,2-4,7"), Some(vec![0, 2, 3, 4, 7]));
        assert_eq!(cpus(""), None);
    }
}
