"""The chart, installed on a real control plane by helm, and its CronJob's pod run as a process of this machine."""

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from simulator.controlplane.programs import HELM, find
from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld
from tests.deploy.chart import CHART

_CORE = "/api/v1"


class Release:
    """An installed chart in a namespace of its own, in which only restricted pods may be.

    Attributes:
        namespace: Where it is, and its state.
        name: What its objects are called.
    """

    def __init__(self, world: RealWorld, directory: Path, values: Mapping[str, Any]) -> None:
        self._world = world
        self._directory = directory
        self._values = values
        self._release = f"r{uuid.uuid4().hex[:6]}"
        self.namespace = f"gpus-{self._release}"
        self.name = f"{self._release}-gpu-rightsizer"

    def __enter__(self) -> Self:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self._world.api.create(
            f"{_CORE}/namespaces", {"metadata": {"name": self.namespace, "labels": labels}}
        )
        values = self._directory / "values.yaml"
        values.write_text(json.dumps(self._values))
        self._helm("install", self._release, str(CHART), "--values", str(values))
        return self

    def __exit__(self, *_: object) -> None:
        self._helm("uninstall", self._release, "--ignore-not-found")
        kept = {"labelSelector": f"app.kubernetes.io/instance={self._release}"}
        self._world.api("DELETE", "/apis/scheduling.k8s.io/v1/priorityclasses", params=kept)
        self._world.api("DELETE", f"{_CORE}/namespaces/{self.namespace}")

    def upgrade(self, *flags: str) -> None:
        """As a person does it, with the same values and these."""
        self._helm("upgrade", self._release, str(CHART), "--reuse-values", *flags)

    def uninstall(self) -> None:
        """As a person does it."""
        self._helm("uninstall", self._release, "--wait")

    def _helm(self, *arguments: str) -> None:
        kubeconfig = str(self._world.kubeconfig)
        where = ("--namespace", self.namespace, "--kubeconfig", kubeconfig)
        done = subprocess.run(
            [str(find((HELM,))["helm"]), *arguments, *where],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr

    def template(self, suffix: str = "") -> Object:
        """The pod template of the CronJob, or of that of the backtest, as the API server has it."""
        path = f"/apis/batch/v1/namespaces/{self.namespace}/cronjobs/{self.name}{suffix}"
        found: Object = self._world.api.get(path)["spec"]["jobTemplate"]["spec"]["template"]
        return found

    def deployed(self) -> Object:
        """The Deployment's pod template."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}"
        found: Object = self._world.api.get(path)["spec"]["template"]
        return found

    def daemon(self) -> Object:
        """The exporter's pod template."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{self.name}-exporter"
        found: Object = self._world.api.get(path)["spec"]["template"]
        return found

    def wanted_exporters(self) -> int:
        """On how many nodes the exporter is to run."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{self.name}-exporter"
        found: int = self._world.api.get(path)["status"]["desiredNumberScheduled"]
        return found

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        """What the CronJob's container would run."""
        command, environment = self.command_of(self.template(), *more)
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=100
        )

    def command_of(self, template: Object, *more: str) -> tuple[list[str], dict[str, str]]:
        """The command of a pod, and its variables, with its files and its account's own token."""
        pod = template["spec"]
        (container,) = pod["containers"]
        root = self._directory / "root"
        for mount in container["volumeMounts"]:
            self._mount(
                root, mount["mountPath"], next(v for v in pod["volumes"] if v["name"] == mount["name"])
            )
        environment = {entry["name"]: self._inside(root, entry["value"]) for entry in container["env"]}
        environment["GPU_RIGHTSIZER_KUBECONFIG"] = str(self._kubeconfig(pod["serviceAccountName"]))
        (program,) = container["command"]
        assert program == "gpu-rightsizer"
        arguments = [self._inside(root, word) for word in container["args"]]
        return [sys.executable, "-m", "rightsizer", *arguments, *more], environment

    def _mount(self, root: Path, path: str, volume: Object) -> None:
        here = root / path.lstrip("/")
        here.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            name = volume["configMap"]["name"]
            found = self._world.api.get(f"{_CORE}/namespaces/{self.namespace}/configmaps/{name}")
            for key, text in found["data"].items():
                (here / key).write_text(text)

    @staticmethod
    def _inside(root: Path, value: str) -> str:
        return str(root / value.lstrip("/")) if value.startswith("/") else value

    def _kubeconfig(self, account: str) -> Path:
        """For a token of the service account, and nothing else."""
        path = f"{_CORE}/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self._world.api.create(path, request)["status"]["token"]
        document = yaml.safe_load(self._world.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        written = self._directory / f"{account}.kubeconfig"
        written.write_text(json.dumps(document))
        return written

    def left(self) -> list[str]:
        """Objects of the release that are still there, of all kinds that a chart may install."""
        label = {"labelSelector": f"app.kubernetes.io/instance={self._release}"}
        return [
            f"{plural}/{one['metadata']['name']}"
            for group, plural in _KINDS
            for one in self._world.api.items(f"{group}/{plural}", **label)
        ]

    def secrets(self) -> list[str]:
        """Names of the Secrets in its namespace."""
        found = self._world.api.items(f"{_CORE}/namespaces/{self.namespace}/secrets")
        return [one["metadata"]["name"] for one in found]


_RBAC, _ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
_KINDS = (
    (_CORE, "services"),
    (_CORE, "serviceaccounts"),
    (_CORE, "configmaps"),
    (_CORE, "resourcequotas"),
    ("/apis/apps/v1", "daemonsets"),
    ("/apis/apps/v1", "deployments"),
    ("/apis/batch/v1", "cronjobs"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
    ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    *((_RBAC, plural) for plural in ("clusterroles", "clusterrolebindings", "roles", "rolebindings")),
    *((_ADMISSION, f"validatingadmissionpolic{end}") for end in ("ies", "ybindings")),
)
