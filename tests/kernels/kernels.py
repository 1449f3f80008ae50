"""Define the kernels and variants of the test matrix, as data. ``__main__.py`` runs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor architecture, and how QEMU emulates a machine with it."""

    name: str  #: as ``uname -m`` prints it
    debian: str  #: Debian's name for the architecture
    package: str  #: the Debian package of QEMU
    command: tuple[str, ...]
    console: str
    servers: tuple[str, ...]  #: servers on the disk of the virtual machine


X86_64 = Machine(
    "x86_64", "amd64", "qemu-system-x86", ("qemu-system-x86_64", "-cpu", "max"), "ttyS0",
    ("mysql-5.6.24", "mysql-8.0.31", "mariadb-10.11"),
)  # fmt: skip
#: The arm64 machine. Its servers are the test servers that Debian packages. MariaDB 11.8 is compiled with
#: signed return addresses. The standard algorithm for signatures takes QEMU ten times as long as
#: ``pauth-impdef``.
AARCH64 = Machine(
    "aarch64", "arm64", "qemu-system-arm",
    ("qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on"), "ttyAMA0",
    ("mariadb-10.11", "mariadb-11.8"),
)  # fmt: skip
MACHINES = {machine.name: machine for machine in (X86_64, AARCH64)}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Debian kernel. The cloud flavor is small, and has BTF and the drivers for virtual machines."""

    name: str  #: start of the kernel release, as ``uname -r`` prints it; on arm64, followed by ``-arm64``
    suite: str  #: the suite of Debian's archive in which the package depends on this kernel
    machine: Machine = X86_64

    @property
    def package(self) -> str:
        """Return the name of Debian's package."""
        return f"linux-image-cloud-{self.machine.debian}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration of the machine, for example without a feature that some hosts lack or deny."""

    name: str
    what: str
    #: Extra options on the kernel's command line. Other variants are set up by init.sh or job_main.py.
    options: str = ""


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("5.10", "bullseye"),
        Kernel("6.1", "bookworm"),
        Kernel("6.12", "trixie"),
        Kernel("7.", "sid"),
        Kernel("5.10-arm64", "bullseye", AARCH64),
        Kernel("6.1-arm64", "bookworm", AARCH64),
    )
}
DEFAULT = "default"
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(DEFAULT, "as Debian configures it"),
        Variant(
            "seccomp", "`bpf` and `perf_event_open` return EPERM, as in a container with default settings"
        ),
        Variant("lockdown", "booted with `lockdown=confidentiality`", options="lockdown=confidentiality"),
        Variant("no-btf", "no `/sys/kernel/btf`, as if built without CONFIG_DEBUG_INFO_BTF"),
        Variant("cgroup-v1", "cgroup version 1"),
    )
}
#: The kernels on which each variant runs.
RUNS = (
    *((kernel, DEFAULT) for kernel in KERNELS),
    *(
        (kernel, variant)
        for variant in ("seccomp", "lockdown", "no-btf")
        for kernel in ("5.10", "6.1", "6.12")
    ),
    ("5.10", "cgroup-v1"),
    ("6.1", "cgroup-v1"),
)


@dataclass(frozen=True, slots=True)
class Derived:
    """A system on which the tests do not run, with the run that shows what to expect on that system."""

    system: str
    kernel: str
    run: tuple[str, str]
    why: str


DERIVED = (
    Derived("Ubuntu 22.04", "5.15", ("5.10", DEFAULT),
            "task iterators cannot sleep before 5.18; 5.15 only has another way to find the registers"),
    Derived("Debian 11, Amazon Linux 2 (5.10)", "5.10", ("5.10", DEFAULT), "the same kernel series"),
    Derived("Ubuntu 20.04, Amazon Linux 2 (4.14, 5.4)", "4.14, 5.4", ("5.10", "no-btf"),
            "no task iterators before 5.8, so `procfs`; perf events and uprobes exist"),
    Derived("RHEL 8", "4.18", ("5.10", "no-btf"),
            "at least `procfs`; its kernel may have parts of later BPF, which doctor detects"),
    Derived("RHEL 9", "5.14", ("5.10", DEFAULT),
            "at least `bpf-nosleep`; its kernel may have parts of later BPF, which doctor detects"),
    Derived("containers with default settings", "any", ("5.10", "seccomp"), "the same calls are denied"),
)  # fmt: skip
