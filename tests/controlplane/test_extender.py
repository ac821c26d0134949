"""The scheduler extender on a real kube-scheduler: the idle pod goes, the busy one stays, and nothing waits for it."""

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import find
from simulator.processes import free_port
from simulator.prometheus import Prometheus
from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld, uids

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("extender")]

EXAMPLE = Path(__file__).parents[2] / "deploy/examples/scheduler-extender/kube-scheduler.yaml"

_START_S = 300.0
"""A start and a plan take five seconds; on a busy machine many times as long."""


class Extended:
    """A control plane whose scheduler has the shipped configuration, with an extender that can be started."""

    def __init__(self, directory: Path) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self._directory = directory
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.crt")
        for name in ("tls", "client"):
            leaf = authority.issue_cert("127.0.0.1", "gpu-rightsizer-extender.gpu-rightsizer.svc")
            (directory / f"{name}.crt").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
            leaf.private_key_pem.write_to_path(directory / f"{name}.key")
        text = EXAMPLE.read_text().replace("/etc/kubernetes/gpu-rightsizer", str(directory))
        configuration: dict[str, Any] = yaml.safe_load(text)
        configuration["extenders"][0]["urlPrefix"] = f"https://127.0.0.1:{self.port}"
        configuration["extenders"][0]["httpTimeout"] = "5s"  # tests run on busy machines
        self.plane = ControlPlane(directory / "plane", find(), scheduler=configuration)

    @contextlib.contextmanager
    def extending(self, world: RealWorld, policy: Path, *, every: str) -> Iterator[Path]:
        """While entered, an extender that has planned; its log."""
        log = self._directory / f"{world.team}.log"
        command = [sys.executable, "-m", "rightsizer", "extend", "--every", every, "--policy", str(policy)]
        command += ["--kubeconfig", str(world.kubeconfig), "--prometheus-url", world.prometheus_url]
        command += ["--listen", f"127.0.0.1:{self.metrics_port}"]
        command += ["--extender-listen", f"127.0.0.1:{self.port}"]
        files = {"--tls-cert-file": "tls.crt", "--tls-key-file": "tls.key", "--client-ca-file": "ca.crt"}
        command += [text for flag, name in files.items() for text in (flag, str(self._directory / name))]
        with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                world.api.eventually(lambda: self.get("/readyz") == "ok\n", timeout_s=_START_S)
                yield log
            except AssertionError as error:
                raise AssertionError(log.read_text()) from error
            finally:
                process.terminate()

    def get(self, path: str) -> str:
        """What the metrics port answers; empty if it does not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())
        except OSError:
            return ""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extended]:
    """Its own, since the scheduler's configuration is read at its start."""
    made = Extended(tmp_path_factory.mktemp("extended"))
    with made.plane:
        yield made


@pytest.fixture
def world(extended: Extended, prometheus: Prometheus, tmp_path: Path) -> Iterator[RealWorld]:
    """A team on a node of 4 GPUs."""
    with RealWorld(extended.plane, prometheus, tmp_path) as made:
        made.node(gpus=4)
        yield made


def _fill(world: RealWorld) -> tuple[list[Object], list[Object]]:
    """An idle and a younger busy job of 2 GPUs each; their pods."""
    idle = world.add("Job", "idle", gpus=2, priorityClass="medium-priority")
    return idle, world.add("Job", "busy", "busy", gpus=2, priorityClass="medium-priority")


def _urgent(world: RealWorld) -> str:
    """A pending job of a higher priority that asks for 2 GPUs runs; whose pod went."""

    def there() -> dict[str, set[str]]:
        """Also of what went, the finalizer of its Job may still keep a pod."""
        pods = {name: world.pods(name) for name in ("idle", "busy")}
        return {
            name: uids([one for one in found if "deletionTimestamp" not in one["metadata"]])
            for name, found in pods.items()
        }

    before = there()
    world.create("Job", "urgent", gpus=2, priorityClass="high-priority")
    world.running("urgent", 1)
    after = there()
    (gone,) = (name for name, known in before.items() if not known & after[name])
    return gone


def test_scheduler_without_an_answer_preempts_the_busy_pod_and_goes_on(world: RealWorld) -> None:
    """The extender is configured, and does not run."""
    _fill(world)
    assert _urgent(world) == "busy"


def test_scheduler_with_extender_preempts_the_idle_pod(extended: Extended, world: RealWorld) -> None:
    """Also if the rule allows it only for pending pods; an Event tells of it, and so do history and metrics."""
    _fill(world)
    with extended.extending(world, world.on_demand_policy("suspend"), every="2m") as log:
        assert _urgent(world) == "idle"
        selector = "reason=NamedForPreemption"
        (event,) = world.api.eventually(
            lambda: world.api.items(f"{world.api.core}/events", fieldSelector=selector), bool
        )
        metrics = extended.get("/metrics")
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Job", "idle")
    assert "2 GPUs" in event["message"]
    assert "its controller creates pods again (idle; rule own)" in event["message"]
    assert 'gpu_rightsizer_scheduler_questions_total{answer="replaced"} 1.0' in metrics
    assert 'scheduler_victims_total{finding="idle",priority_class="medium-priority"} 1.0' in metrics
    assert "named to kube-scheduler" in log.read_text()
    shown = world.run("history")
    assert "NamedForPreemption" in shown.out, shown


def test_scheduler_with_an_extender_that_protects_the_idle_pod_takes_the_busy_one(
    extended: Extended, world: RealWorld
) -> None:
    """The rule only advises, so what the scheduler chose stands."""
    _fill(world)
    policy = world.policy_of("actions: [suspend]")
    policy.write_text(policy.read_text().replace("mode: enforce", "mode: advise"))
    with extended.extending(world, policy, every="2m"):
        assert _urgent(world) == "busy"
        assert 'scheduler_questions_total{answer="unchanged"} 1.0' in extended.get("/metrics")


@pytest.mark.slow
def test_scheduler_with_a_stale_extender_takes_the_busy_pod(extended: Extended, world: RealWorld) -> None:
    """After two cycles without a plan it answers for nobody."""
    _fill(world)
    policy = world.on_demand_policy("suspend")
    with extended.extending(world, policy, every="20s"):
        policy.write_text("nothing")
        world.api.eventually(lambda: "more than two cycles" in extended.get("/readyz"), timeout_s=_START_S)
        assert _urgent(world) == "busy"
        assert 'scheduler_questions_total{answer="stale"} 1.0' in extended.get("/metrics")
