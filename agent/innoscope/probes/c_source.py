"""Generate the C source for one server: constants and accessors from the catalog, then the probe families."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innoscope.common.data import folder
from innoscope.probes.slots import Slot, Slots, default_slots
from innoscope.target.container import FIRST_PID_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from innoscope.probes.catalog import Probe, ProbeCatalog, ProbeValue, Site

#: Kinds of threads that the programs distinguish; also the label values of the metric
#: ``flushed_pages_by_thread``.
THREADS = ("page_cleaner", "master", "user", "other")
CALIBRATION = "calibration"


def program_text(catalog: ProbeCatalog, used: Sequence[tuple[Probe, Site]]) -> str:
    """Return the source for ``used``. The last point, after the points of ``used``, is for calibration."""
    slots = default_slots()
    parts = [
        "#include <uapi/linux/ptrace.h>",
        *_namespace(),
        *_constants(slots),
        *_points(used),
        *((folder("include") / header).read_text() for header in ("bits.h", "probe.h")),
        *(_accessor(probe, site, name, slots) for probe, site in used for name in probe.values),
        *_families(catalog, used),
        (folder("uprobes") / "calibration.bpf.c").read_text(),
    ]
    return "\n".join(parts)


def _namespace() -> Iterable[str]:
    """Yield macros for our pid namespace, unless it is the initial one."""
    ours = os.stat("/proc/self/ns/pid")  # noqa: PTH116, a magic link that pathlib cannot resolve
    if ours.st_ino != FIRST_PID_NAMESPACE:
        # In the kernel's dev_t, the minor number has 20 bits.
        yield f"#define PID_NAMESPACE_DEVICE {os.major(ours.st_dev) << 20 | os.minor(ours.st_dev)}ULL"
        yield f"#define PID_NAMESPACE {ours.st_ino}ULL"


def _constants(slots: Slots) -> Iterable[str]:
    yield f"#define COUNTERS {slots.counter_count}"
    # Calibration has an additional histogram.
    yield f"#define HISTOGRAMS {slots.histogram_count + 1}"
    yield f"#define SLOT_calibration_seconds {slots.histogram_count}"
    for slot in (*slots.counters.values(), *slots.histograms.values()):
        yield f"#define SLOT_{slot.metric} {slot.first}"
        yield f"#define LABELS_{slot.metric} {slot.count}"
        for index, label in enumerate(slot.labels or ()):
            yield f"#define LABEL_{slot.metric}_{label} {index}"
    for index, thread in enumerate(THREADS):
        yield f"#define THREAD_{thread.upper()} {index}"


def _points(used: Sequence[tuple[Probe, Site]]) -> Iterable[str]:
    yield f"#define POINTS {len(used) + 1}"
    yield f"#define POINT_{CALIBRATION} {len(used)}"
    present = {probe.name for probe, _ in used}
    queried = dict.fromkeys(name for probe, _ in used for name in probe.asks)
    for index, (probe, _) in enumerate(used):
        yield f"#define POINT_{probe.name} {index}"
        yield f"#define HAVE_{probe.name}"
    # A program may refer to a probe that is not in use. That probe gets the index POINTS, which no point has.
    yield from (f"#define POINT_{name} POINTS" for name in queried if name not in present)


def _accessor(probe: Probe, site: Site, name: str, slots: Slots) -> str:
    value = site.values.get(name)
    lines = [f"static inline u64 {probe.name}_{name}(struct pt_regs *ctx)", "{"]
    lines += _value_code(value, _labels(probe, slots)) if value else ["    return NOTHING;"]
    return "\n".join([*lines, "}"])


def _value_code(value: ProbeValue, labels: Sequence[str]) -> Iterable[str]:
    if value.arg is None and value.result is None:
        yield f"    return {value.number if value.label is None else labels.index(value.label)};"
        return
    register = "PT_REGS_RC(ctx)" if value.arg is None else f"PT_REGS_PARM{value.arg + 1}(ctx)"
    # The upper bits of a narrow argument or result are undefined.
    narrow = f" & {(1 << value.width) - 1:#x}ULL" if value.width < 64 else ""
    if not value.labels:
        yield f"    return {register}{narrow};"
        return
    yield f"    u64 value = {register}{narrow};"
    for number, label in value.labels.items():
        yield f"    if (value == {number}) return {labels.index(label)};"
    yield "    return NOTHING;"


def _labels(probe: Probe, slots: Slots) -> Sequence[str]:
    """Return the label values of the first labeled metric that the probe feeds."""
    places: dict[str, Slot] = {**slots.counters, **slots.histograms}
    fed = (places[metric].labels for metric in probe.feeds if metric in places)
    return next((labels for labels in fed if labels), ())


def _families(catalog: ProbeCatalog, used: Sequence[tuple[Probe, Site]]) -> Iterable[str]:
    sources = dict.fromkeys(catalog.families[probe.family].source for probe, _ in used)
    return ((folder("uprobes") / source).read_text() for source in sources)
