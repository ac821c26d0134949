"""A whole simulated cluster, from its spec to running processes.

API server ◄─ objects, created under a clock that moves from the past to now
    │ pods                               one agent per node: devices, kubelet, GPU readings
    └────────► node agent ─► kubelet socket ─┐
                         └─► driver's board ─┴─► gpu-exporter, one process per node
"""

import contextlib
import datetime
import functools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Self

import yaml

from simulator import history, manifests, placement
from simulator.gpus import Board, environment
from simulator.kube import ApiServer
from simulator.kubeclient import Endpoint, KubeClient, KubeClientError
from simulator.nodes.agent import NodeAgent
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.machine import Machine
from simulator.processes import Server
from simulator.prometheus import Prometheus, ScrapeTarget
from simulator.spec import ClusterSpec, NodeSpec, WorkloadSpec
from simulator.workloads import draws
from simulator.workloads.draws import DAY_S
from simulator.workloads.population import NAME_LABEL, Population

EXPORTER_NAMESPACE = "gpu-monitoring"
_BOOT_LEAD_S = DAY_S
"""Drivers were loaded this long before the oldest workload came."""
_CONFLICT = 409
_PLACING_S = 120.0
_FOREIGN_SETTINGS = ("GPU_EXPORTER_", "DCGM_EXPORTER_", "DCGM_POD_RESOURCES_", "NODE_NAME")


class MovingClock:
    """The real time, or an instant at which it was made to stand still."""

    def __init__(self) -> None:
        self._stands_at: datetime.datetime | None = None

    def __call__(self) -> datetime.datetime:
        """Now."""
        return self._stands_at or datetime.datetime.now(datetime.UTC)

    def stand(self, at_s: float) -> None:
        """Stand still at `at_s` (Unix seconds)."""
        self._stands_at = datetime.datetime.fromtimestamp(at_s, datetime.UTC)

    def run(self) -> None:
        """Show the real time again."""
        self._stands_at = None


class Cluster:
    """A simulated cluster; a context manager.

    Args:
        spec: Nodes, PriorityClasses and workloads.
        directory: For boards, the nodes' /proc and /var/log, logs and the kubeconfig.
        kubeconfig: Of an existing API server. There, only the kubelets report that pods started long ago.
        exporters: Whether to run an exporter process per node.
        exporter_options: More flags of the exporters.
        say: Called with each line of progress.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        directory: Path,
        *,
        kubeconfig: Path | None = None,
        exporters: bool = True,
        exporter_options: Sequence[str] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.directory = directory
        self.api: ApiServer | None = None
        self.kubeconfig = kubeconfig or directory / "kubeconfig"
        self.agents: dict[str, NodeAgent] = {}
        self.boards: dict[str, Board] = {}
        self.hosts: dict[str, HostFiles] = {}
        self.exporters: dict[str, Server] = {}
        self._has_own_api = kubeconfig is None
        self._with_exporters = exporters
        self._exporter_options = tuple(exporter_options)
        self._say = say
        self._clock = MovingClock()
        self._stack = contextlib.ExitStack()
        self._population = Population(spec.workloads, seed=spec.seed)

    def __enter__(self) -> Self:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def targets(self) -> tuple[ScrapeTarget, ...]:
        """The exporters as service discovery would show them to Prometheus."""
        return tuple(
            ScrapeTarget(
                address=exporter.address,
                labels={
                    "namespace": EXPORTER_NAMESPACE,
                    "pod": f"gpu-exporter-{draws.seeded(self.spec.seed, name).randrange(16**5):05x}",
                    "container": "gpu-exporter",
                    "node": name,
                },
            )
            for name, exporter in self.exporters.items()
        )

    def announce(self, prometheus: Prometheus) -> None:
        """Let the API server of this cluster have a Service for Prometheus; a real one leads to nothing on loopback."""
        if self.api is None:
            return
        service = manifests.prometheus_service(EXPORTER_NAMESPACE)
        if self.api.get("Namespace", None, EXPORTER_NAMESPACE) is None:
            self.api.create(manifests.namespace(EXPORTER_NAMESPACE))
        self.api.create(service)
        port = service["spec"]["ports"][0]["port"]
        self.api.backends.set(EXPORTER_NAMESPACE, service["metadata"]["name"], port, prometheus.url)

    def write_history(self, prometheus: Prometheus, *, hours: float = 24.0, step_s: int = 15) -> int:
        """Give `prometheus` a past of `hours`, a sample every `step_s`; how many samples that were."""
        until_s = int(time.time())
        seconds = range(until_s - int(hours * 3600), until_s, step_s)
        written = 0
        for name, target in zip(self.exporters, self.targets, strict=True):
            attach = functools.partial(target.attach, honor_labels=prometheus.honor_labels)
            past = history.series(self._counting(name), self.agents[name], attach=attach, seconds=seconds)
            written += prometheus.write(past)
        return written

    def _counting(self, node: str) -> str:
        """What the node's exporter serves once it counts."""
        deadline = time.monotonic() + 5.0
        while True:
            exposition = self.exporters[node].get("/metrics")[1]
            counts = any(
                line.startswith("gpu_pod_") and "_shares" not in line for line in exposition.splitlines()
            )
            if counts or time.monotonic() > deadline or not self.agents[node].holdings():
                return exposition
            time.sleep(0.1)

    # --- start, in order

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gpusim-")))
        for node in self.spec.nodes:  # first of all, as a board refuses what no node can be
            board = Board(self.directory / f"{node.name}.board", node)
            self.boards[node.name] = self._stack.enter_context(board)
        if self._has_own_api:
            self._serve()
        client = KubeClient(Endpoint.from_kubeconfig(self.kubeconfig))
        boot_s = time.time() - max((spec.age_s for spec in self.spec.workloads), default=0.0) - _BOOT_LEAD_S
        self._say(f"creating {len(self.spec.nodes)} nodes and {len(self.spec.workloads)} workloads")
        self._create(client)
        for node in self.spec.nodes:
            self._start_agent(node, client, boot_s=boot_s, socket=sockets / f"{node.name}.sock")
        if self._with_exporters:
            self._say(f"starting {len(self.spec.nodes)} exporters")
            self._start_exporters()

    def _serve(self) -> None:
        self.api = self._stack.enter_context(ApiServer(clock=self._clock, tls=True))
        self.kubeconfig.write_text(yaml.safe_dump(self.api.kubeconfig(), sort_keys=False))

    def _create(self, client: KubeClient) -> None:
        oldest_first = sorted(self.spec.workloads, key=lambda spec: -spec.age_s)
        now_s = time.time()
        if self.api is not None and oldest_first:
            self._clock.stand(now_s - oldest_first[0].age_s - DAY_S / 2)
        before = _pod_uids(client)
        namespaces = dict.fromkeys(spec.namespace for spec in oldest_first)
        for obj in (
            *map(manifests.priority_class, self.spec.priority_classes),
            *map(manifests.namespace, namespaces),
            *map(manifests.node, self.spec.nodes),
        ):
            _ensure(client, obj)
        for spec in oldest_first:
            if self.api is not None:
                self._clock.stand(now_s - spec.age_s)
            _ensure(client, manifests.workload(spec))
            self._place(client, spec)
        self._clock.run()
        self._settle()
        if self.api is None:
            self._age(client, now_s=now_s, before=before)
        self._number(client, oldest_first)
        if self.api is not None:
            self.api.requests.clear()  # the log starts after the setup

    def _age(self, client: KubeClient, *, now_s: float, before: AbstractSet[str]) -> None:
        """Make what has just been placed as old as the spec says, except the pods of `before` (UIDs)."""
        pods = placement.wait_placed(client, self.spec.workloads, timeout_s=_PLACING_S)
        made = [pod for pod in pods if pod["metadata"]["uid"] not in before]
        placement.age(client, made, self.spec.workloads, now_s=now_s)

    def _place(self, client: KubeClient, spec: WorkloadSpec) -> None:
        """Let the pods find their nodes before the next workload comes: in the order in which they would have come."""
        if self.api is None:
            placement.wait_placed(client, [spec], timeout_s=_PLACING_S)
        else:
            self._settle()

    def _settle(self) -> None:
        if self.api is not None:
            self.api.settle(10.0)

    def _number(self, client: KubeClient, workloads: Sequence[WorkloadSpec]) -> None:
        """Number the pods by age and name, so that it does not depend on which node is asked first."""
        by_name = {(spec.namespace, spec.name): spec for spec in workloads}
        pods = client.get("/api/v1/pods")["items"]
        for meta in sorted(
            (pod["metadata"] for pod in pods), key=lambda meta: (meta["creationTimestamp"], meta["name"])
        ):
            name = meta.get("labels", {}).get(NAME_LABEL, "")
            if spec := by_name.get((meta["namespace"], name)):
                self._population.join(spec, meta["name"])

    def _start_agent(self, node: NodeSpec, client: KubeClient, *, boot_s: float, socket: Path) -> None:
        self.hosts[node.name] = self._host(node.name)
        agent = NodeAgent(
            node,
            client,
            machine=Machine(node, boot_s=boot_s),
            population=self._population,
            sensors=self.boards[node.name],
            host=self.hosts[node.name],
            socket=socket,
        )
        self._stack.enter_context(agent)
        agent.show()
        self.agents[node.name] = agent

    def _host(self, node: str) -> HostFiles:
        """The node's /proc and /var/log, without what an earlier cluster in this directory left there."""
        folder = self.directory / f"{node}.host"
        shutil.rmtree(folder, ignore_errors=True)
        return HostFiles(folder / "proc", folder / "log")

    def _start_exporters(self) -> None:
        for node in self.spec.nodes:
            exporter = self._exporter(node.name)
            self.exporters[node.name] = exporter
            self._stack.callback(exporter.stop)
            exporter.launch()
        # Asked all at once and only then waited for, one by one, on the way out.
        self._stack.callback(self._terminate_exporters)
        for exporter in self.exporters.values():
            exporter.wait_ready()

    def _terminate_exporters(self) -> None:
        for exporter in self.exporters.values():
            exporter.terminate()

    def _exporter(self, node: str) -> Server:
        options = {
            "interval": "1s",
            "pod-resources-socket": str(self.agents[node].kubelet.socket),
            "proc-root": str(self.hosts[node].proc),
            "pod-logs": str(self.hosts[node].logs),
            "node-name": node,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        return Server(
            f"exporter on {node}",
            lambda port: [
                sys.executable,
                "-m",
                "exporter",
                f"--listen=127.0.0.1:{port}",
                *flags,
                *self._exporter_options,
            ],
            ready_path="/readyz",
            log=self.directory / f"exporter-{node}.log",
            env=_exporter_environment(environment(self.directory / f"{node}.board")),
        )


def _exporter_environment(driver: Mapping[str, str]) -> dict[str, str]:
    """The parent's environment without what would configure an exporter, and with the simulated driver."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_SETTINGS)}
    return kept | dict(driver)


def _pod_uids(client: KubeClient) -> frozenset[str]:
    return frozenset(pod["metadata"]["uid"] for pod in client.get("/api/v1/pods")["items"])


def _ensure(client: KubeClient, obj: manifests.Object) -> None:
    """Create `obj`, unless the API server has it."""
    try:
        client.create(manifests.collection(obj), obj)
    except KubeClientError as error:
        if error.status != _CONFLICT:
            raise
