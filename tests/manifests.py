"""Build helm and kubeconform from their Go modules, and check Kubernetes manifests with them.

The versions are pinned in tests/kubernetes_tools/go.sum. kubeconform usually downloads JSON schemas from
GitHub. This module makes such schemas from Kubernetes' OpenAPI document, which is part of the Go module
k8s.io/kubernetes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gotools
from servers import cache

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOME = Path(__file__).parent / "kubernetes_tools"
_PROGRAMS: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform",
}
#: The version of Kubernetes whose schemas are used, and the module's checksum (as in go.sum).
KUBERNETES: Final = "1.34.4"
_SUM: Final = "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk="
_API: Final = "api/openapi-spec/swagger.json"
#: Types that the OpenAPI document describes as strings, although they also accept numbers.
_NUMBERS: Final = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ("string", "integer"),
    "io.k8s.apimachinery.pkg.api.resource.Quantity": ("string", "number"),
}


def _tools() -> Path:
    """Return the directory in the cache with the programs and schemas; build them if it is missing."""
    return gotools.cached(f"kubernetes-{cache.sha256(_HOME / 'go.sum')[:12]}-{KUBERNETES}", _build)


def _build(folder: Path) -> None:
    for name, package in _PROGRAMS.items():
        gotools.go("build", "-ldflags=-s -w", "-o", str(folder / name), package, folder=_HOME)
    _write_schemas(folder / "schemas")


def _write_schemas(folder: Path) -> None:
    """Write one JSON schema per kind. They allow no unknown properties."""
    wanted = f"k8s.io/kubernetes@v{KUBERNETES}"
    module = json.loads(gotools.go("mod", "download", "-json", wanted, folder=folder.parent))
    assert module["Sum"] == _SUM
    document = json.loads((Path(module["Dir"]) / _API).read_text())
    definitions = {name: _strict(name, schema) for name, schema in document["definitions"].items()}
    folder.mkdir()
    (folder / "definitions.json").write_text(json.dumps({"definitions": definitions}))
    for file, name in _kinds(definitions):
        (folder / file).write_text(json.dumps({"$ref": f"definitions.json#/definitions/{name}"}))


def _strict(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    if name in _NUMBERS:
        return {"type": list(_NUMBERS[name])}
    if "properties" in schema:
        return schema | {"additionalProperties": False}
    return schema


def _kinds(definitions: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield kubeconform's file name and the definition's name for each kind."""
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            group = kind["group"].partition(".")[0]
            parts = [kind["kind"], *([group] if group else []), kind["version"]]
            yield "-".join(parts).lower() + ".json", name


def helm(*arguments: object) -> str:
    """Run helm, and return its output."""
    command = [str(_tools() / "helm"), *map(str, arguments), "--kube-version", KUBERNETES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kubeconform(manifests: str) -> tuple[int, str]:
    """Validate manifests. Return kubeconform's exit status and its report."""
    home = _tools()
    schema = f"{home / 'schemas'}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [str(home / "kubeconform"), "-strict", "-summary", "-schema-location", schema]
    done = subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr
