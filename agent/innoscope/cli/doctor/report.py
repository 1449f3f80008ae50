"""Summarize all checks: the verdict, and the report as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from innoscope.cli.doctor.model import PTRACE, SNAPSHOTS, CheckResult, CheckStatus, DoctorVerdict
from innoscope.cli.doctor.server import ACCESS
from innoscope.common.console import Color, Colored
from innoscope.target.discover import describe_ignored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from innoscope.target.allowed_users import Ignored
    from innoscope.target.model import Target

_MARK = {CheckStatus.OK: "ok  ", CheckStatus.WARN: "warn", CheckStatus.FAIL: "FAIL"}
_COLORS = {CheckStatus.WARN: Color.YELLOW, CheckStatus.FAIL: Color.RED}
_SAYS = {
    DoctorVerdict.WORKS: "Stacks work without stopping the server.",
    DoctorVerdict.NO_SERVER: "No mysqld or mariadbd is running on this host.",
    DoctorVerdict.FALLBACK: (
        "Stacks work only with --method ptrace, which stops each thread for microseconds."
    ),
    DoctorVerdict.NOTHING: "Stacks do not work; the lines marked FAIL show why.",
}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All results: ``servers`` contains the checks of each target; ``ignored`` processes were not checked."""

    host: Sequence[CheckResult]
    targets: Sequence[Target]
    servers: Sequence[Sequence[CheckResult]]
    ignored: Sequence[Ignored] = ()

    @property
    def verdict(self) -> DoctorVerdict:
        """Return the verdict for the server with the worst result."""
        if not self.targets:
            return DoctorVerdict.NO_SERVER
        if any(_failed(checks, ACCESS) for checks in self.servers):
            return DoctorVerdict.NOTHING
        if not _failed(self.host, SNAPSHOTS):
            return DoctorVerdict.WORKS
        return DoctorVerdict.NOTHING if _failed(self.host, PTRACE) else DoctorVerdict.FALLBACK


def text(report: DoctorReport) -> Iterator[str]:
    """Yield the report's lines: the host, then each server. The remedy follows a line that is not ok."""
    yield "Host"
    yield from _lines(report.host)
    for target, checks in zip(report.targets, report.servers, strict=True):
        yield ""
        yield f"Server {target.pid} ({target.flavour} {'.'.join(map(str, target.version)) or '?'})"
        yield from _lines(checks)
    if report.ignored:
        yield ""
        yield from describe_ignored(report.ignored)
    yield ""
    yield _SAYS[report.verdict]


def document(report: DoctorReport) -> dict[str, Any]:
    """Return the JSON document (docs/json.md): the verdict, all checks, and the ignored processes."""
    servers = zip(report.targets, report.servers, strict=True)
    return {
        "schema": 1,
        "verdict": report.verdict.name.lower(),
        "exit_code": int(report.verdict),
        "host": [asdict(check) for check in report.host],
        "targets": [
            {"target": target.document(), "checks": [asdict(check) for check in checks]}
            for target, checks in servers
        ],
        "ignored": [asdict(one) for one in report.ignored],
    }


def _lines(checks: Sequence[CheckResult]) -> Iterator[str]:
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        line = f"  {_MARK[check.status]}  {check.name:<{width}}  {check.detail}"
        yield Colored(line, _COLORS[check.status]) if check.status in _COLORS else line
        if check.status is not CheckStatus.OK and check.remedy:
            first, *rest = check.remedy.split("\n")
            yield f"        {'':<{width}}  → {first}"
            yield from (f"        {'':<{width}}    {line}" for line in rest)


def _failed(checks: Sequence[CheckResult], name: str) -> bool:
    """Return whether the check ``name`` is missing, or its status is not ``ok``."""
    return not any(check.name == name and check.status is CheckStatus.OK for check in checks)
