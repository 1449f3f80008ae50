"""Identify the Kubernetes pod of a container by the links that the kubelet creates for log files.

For each container, the kubelet creates the link ``/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log``
(kubernetes 1.34, pkg/kubelet/kuberuntime/legacy.go, logSymlink). Only the names of the links are read:
neither the API server nor log files are needed. Kubernetes restricts the names to lower-case letters,
digits, hyphens and dots. A link whose name would exceed 255 characters is truncated by the kubelet, and is
ignored.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

#: The kubelet's directory. It does not exist on hosts without Kubernetes.
DIRECTORY: Final = Path("/var/log/containers")
#: Maximum number of links that are read. By default, a kubelet runs at most 110 pods.
_MAX_LINKS: Final = 20_000
#: Length of the ids in ``Target.container``.
_DIGITS: Final = 12
_LINK: Final = re.compile(
    r"(?P<pod>[a-z0-9][a-z0-9.-]{0,252})_(?P<namespace>[a-z0-9][a-z0-9-]{0,62})"
    r"_(?P<container>[a-z0-9][a-z0-9-]{0,62})-(?P<id>[0-9a-f]{64})\.log"
)


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


class Pods:
    """The containers in the kubelet's directory."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory

    @property
    def exist(self) -> bool:
        """Return whether the kubelet's directory exists."""
        return self._directory.is_dir()

    def find(self, container: str) -> PodContainer | None:
        """Return the container whose id begins with ``container``. Return None if there is no link."""
        if len(container) != _DIGITS:
            return None  # a list of namespaces instead of an id (container.py)
        try:
            with os.scandir(self._directory) as links:
                for link in islice(links, _MAX_LINKS):
                    match = _LINK.fullmatch(link.name)
                    if match and match["id"].startswith(container):
                        return PodContainer(match["namespace"], match["pod"], match["container"])
        except OSError:
            return None
        return None
