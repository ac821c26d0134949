"""The programs of a control plane: where their sources are pinned and where the binaries are."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from simulator.cache import cache_directory

MODULES = Path(__file__).parents[2] / "tests" / "controlplane" / "modules"
ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
"""A folder of ready-made programs; what it lacks is taken from the cache.

setup-envtest's has etcd and kube-apiserver only: controllers, scheduler and kubelets are built all the same."""

RELEASES = {"1.36": "kubernetes", "1.37": "kubernetes-1.37"}
"""Releases of Kubernetes and the folders of MODULES that pin them; the first one is the default."""
RELEASE_VARIABLE = "KUBERNETES"

_RELEASE = re.compile(r"^\t(?P<path>\S+) v(?P<version>\d\S*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A program: the Go package of its main function, and the folder of MODULES that pins it.

    Attributes:
        source: The file of the main function, if it is one of this project.
        is_apart: Whether it is built into a folder of its own in any case.
        of: The Go module with its definitions, if it is an operator.
        manifests: Patterns of its definitions and webhooks in that module; they are kept with the program.
    """

    name: str
    module: str
    package: str
    source: Path | None = None
    is_apart: bool = False
    of: str = ""
    manifests: tuple[str, ...] = ()

    @property
    def is_alone(self) -> bool:
        """Whether no other program is built into its folder."""
        return self.is_apart or self.source is not None or bool(self.of)


def _kubernetes() -> str:
    """The folder that pins the release that the environment asks for; an unknown one is no folder, and says so."""
    wanted = os.environ.get(RELEASE_VARIABLE) or next(iter(RELEASES))
    return RELEASES.get(wanted, f"kubernetes-{wanted}")


KUBERNETES = _kubernetes()
HELM = Program("helm", "helm", "helm.sh/helm/v4/cmd/helm")
KUSTOMIZE = Program("kustomize", "kustomize", "sigs.k8s.io/kustomize/kustomize/v5")
KUBE_STATE_METRICS = Program("kube-state-metrics", "kube-state-metrics", "k8s.io/kube-state-metrics/v2")
_FIT = MODULES.parent / "fit" / "main.go"
FIT = Program("fit", KUBERNETES, str(_FIT), _FIT)
PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kube-controller-manager", KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kube-scheduler", KUBERNETES, "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    HELM,
    KUSTOMIZE,
    KUBE_STATE_METRICS,
    FIT,
)

CONTROL_PLANE = tuple(
    program for program in PROGRAMS if program not in {HELM, KUSTOMIZE, KUBE_STATE_METRICS, FIT}
)
"""What a control plane is made of; the others install on one, watch it, or answer in the place of its scheduler."""

_TRAINING = MODULES.parents[1] / "operators" / "training-operator.go"
_MPI = _TRAINING.with_name("mpi-operator.go")
_KUBEFLOW = "github.com/kubeflow"
_WEBHOOK = "config/components/webhook/manifests.yaml"
OPERATORS = (
    Program(
        "training-operator",
        "operators-0.22",
        str(_TRAINING),
        _TRAINING,
        of=f"{_KUBEFLOW}/training-operator",
        manifests=("manifests/base/crds/kubeflow.org_*.yaml", "manifests/base/webhook/manifests.yaml"),
    ),
    Program(
        "jobset",
        "operators-0.22",
        "sigs.k8s.io/jobset",
        of="sigs.k8s.io/jobset",
        manifests=("config/components/crd/bases/*.yaml", _WEBHOOK),
    ),
    Program(
        "kuberay",
        "operators-0.22",
        "github.com/ray-project/kuberay/ray-operator",
        of="github.com/ray-project/kuberay/ray-operator",
        manifests=("config/crd/bases/*.yaml",),
    ),
    Program(
        "lws",
        "operators-0.22",
        "sigs.k8s.io/lws/cmd",
        of="sigs.k8s.io/lws",
        manifests=("config/crd/bases/*.yaml", "config/webhook/manifests.yaml"),
    ),
    Program(
        "mpi-operator",
        "operators-0.23",
        str(_MPI),
        _MPI,
        of=f"{_KUBEFLOW}/mpi-operator",
        manifests=("manifests/base/kubeflow.org_mpijobs.yaml",),
    ),
    Program(
        "trainer",
        "operators-0.23",
        f"{_KUBEFLOW}/trainer/v2/cmd/trainer-controller-manager",
        of=f"{_KUBEFLOW}/trainer/v2",
        manifests=("manifests/base/crds/trainer*.yaml", "manifests/base/webhook/manifests.yaml"),
    ),
)
"""Operators, the cheapest first; the folders of MODULES are named by their release of controller-runtime."""
_CONTAINERD, _CNI = (
    "github.com/containerd/containerd/v2/cmd",
    "github.com/containernetworking/plugins/plugins",
)
NODE = (
    Program("kubelet", KUBERNETES, "k8s.io/kubernetes/cmd/kubelet", is_apart=True),
    Program("containerd", "containerd", f"{_CONTAINERD}/containerd"),
    Program("containerd-shim-runc-v2", "containerd", f"{_CONTAINERD}/containerd-shim-runc-v2"),
    Program("ctr", "containerd", f"{_CONTAINERD}/ctr"),
    Program("bridge", "cni", f"{_CNI}/main/bridge"),
    Program("host-local", "cni", f"{_CNI}/ipam/host-local"),
    Program("loopback", "cni", f"{_CNI}/main/loopback"),
)
"""Programs of a real node, besides runc."""

PARTS = {"operators": OPERATORS, "node": NODE}
"""Programs that are not built with the control plane, by the target of make that builds them."""

Programs = Mapping[str, Path]
"""Paths of programs by name."""


class MissingProgramsError(Exception):
    """Some of the programs are not there; the message says which, and how to get them."""


class AssetsError(MissingProgramsError):
    """KUBEBUILDER_ASSETS is not a folder with our programs."""


def find(programs: Sequence[Program] = CONTROL_PLANE) -> Programs:
    """These programs, from KUBEBUILDER_ASSETS first, then from the cache."""
    require_known_release()
    if absent := missing(programs):
        target = next((name for name, part in PARTS.items() if absent[0] in part), "controlplane")
        raise MissingProgramsError(
            f"no {', '.join(program.name for program in absent)}; `make {target}` builds them once, "
            f"or set {ASSETS_VARIABLE} to a folder that has them"
        )
    return {program.name: _path(program, _assets()) for program in programs}


def require_known_release() -> None:
    """Check the release that the environment asks for.

    Raises:
        AssetsError: It is not pinned.
    """
    if KUBERNETES not in RELEASES.values():
        wanted = os.environ[RELEASE_VARIABLE]
        raise AssetsError(f"{RELEASE_VARIABLE}={wanted}: only {', '.join(RELEASES)} are pinned")


def missing(programs: Sequence[Program] = PROGRAMS) -> list[Program]:
    """The programs that are neither given nor built."""
    assets = _assets()
    return [program for program in programs if not _path(program, assets).is_file()]


def _assets() -> Path | None:
    """The folder that KUBEBUILDER_ASSETS names; a slip in it must not lead to other programs than those meant."""
    given = os.environ.get(ASSETS_VARIABLE)
    if not given:
        return None
    folder = Path(given)
    if not folder.is_dir():
        raise AssetsError(f"{ASSETS_VARIABLE}={given}: is no folder")
    if not any((folder / program.name).is_file() for program in PROGRAMS):
        names = ", ".join(program.name for program in PROGRAMS)
        raise AssetsError(f"{ASSETS_VARIABLE}={given}: has none of {names}")
    return folder


def _path(program: Program, assets: Path | None) -> Path:
    given = assets / program.name if assets is not None else None
    return given if given is not None and given.is_file() else built(program) / program.name


def built(program: Program) -> Path:
    """The folder of a program and of those built with it, named by what decides what comes out; it may not exist."""
    module = program.module
    digest = hashlib.sha256(link_flags(module).encode())
    for path in (MODULES / module / "go.mod", MODULES / module / "go.sum", program.source):
        if path is not None:
            digest.update(path.read_bytes())
    name = program.name if program.is_alone else module
    return cache_directory("controlplane") / f"{name}-{digest.hexdigest()[:12]}"


def release(module: str, path: str) -> str:
    """The version of the Go module `path` that the go.mod of `module` pins, such as "1.36.3"."""
    found: dict[str, str] = dict(_RELEASE.findall((MODULES / module / "go.mod").read_text()))
    return found[path]


def link_flags(module: str) -> str:
    """The linker flags of the projects' own release builds, so that a program reports its version.

    Sources: hack/lib/version.sh of Kubernetes, Makefile of Helm.
    """
    versions: dict[str, str] = {}
    if module in RELEASES.values():
        version = release(module, "k8s.io/kubernetes")
        major, minor, _ = version.split(".", 2)
        fields = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        versions = {f"k8s.io/component-base/version.{field}": value for field, value in fields.items()}
    elif module == "helm":
        versions["helm.sh/helm/v4/internal/version.version"] = f"v{release(module, 'helm.sh/helm/v4')}"
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in versions.items())])
