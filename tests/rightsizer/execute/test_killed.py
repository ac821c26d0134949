"""SIGKILL of `apply` and `run`, as processes, around each write; a fresh cycle then reconciles.

Nothing is done twice, nothing is lost, whatever was under way.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from simulator.kube import Fault, LoggedRequest
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

_PATIENCE_S = 100
_OWN = "gpu-rightsizer"

WRITES: Mapping[str, tuple[str, str, int]] = {
    # One write of a cycle each: its method, its path, and how many such requests come before it.
    "lease": ("POST", "/leases$", 0),
    "scope": ("POST", "/configmaps$", 0),
    "dry-run": ("PATCH", "/deployments/idle$", 0),
    "patch": ("PATCH", "/deployments/idle$", 1),
    "event": ("POST", "/events$", 0),
    "dry-eviction": ("POST", "/shell/eviction$", 0),
    "manifest": ("POST", "/secrets$", 0),
    "eviction": ("POST", "/shell/eviction$", 1),
    "event-of-pod": ("POST", "/events$", 1),
}
BEGUN = {
    **dict.fromkeys(("dry-run", "patch", "event"), "idle"),
    **dict.fromkeys(("dry-eviction", "manifest", "eviction", "event-of-pod"), "shell"),
}
"""The workload whose change each write is about."""
MOMENTS = ("unheard", "unanswered", "answered")
"""The request is lost, it has taken effect without an answer, or the next request after it is under way."""
QUICK = {
    *("apply-lease-unanswered", "apply-patch-unheard", "apply-patch-unanswered", "apply-manifest-answered"),
    *("apply-eviction-unanswered", "run-patch-unanswered", "run-eviction-unheard"),
}
"""In every `make test`; the others by `make check-deep`."""


class _Killer:
    """Kills a process at one moment of one write, before anything else can happen."""

    def __init__(self, world: World, write: str, moment: str) -> None:
        self._add = world.api.requests.add
        method, path, self._left = WRITES[write]
        self._of, self._moment = Fault(path, method), moment
        self._is_past = False
        self.process: subprocess.Popen[bytes] | None = None
        if moment == "unheard":
            if self._left:
                world.api.inject(Fault(path, method, self._left, delay_s=0.001))  # these go through
            world.api.inject(Fault(path, method, drop=True))
        world.api.requests.add = self._noted  # type: ignore[method-assign]

    def _noted(self, entry: LoggedRequest) -> None:
        """Called before the answer is sent."""
        self._add(entry)
        if self._is_past and "/leases" not in entry.path:
            self._kill()
        if self._is_past or not self._of.matches(entry.method, entry.path):
            return
        self._is_past, self._left = self._left == 0, self._left - 1
        if self._is_past and self._moment != "answered":
            self._kill()

    def _kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def _command(world: World, command: str) -> list[str]:
    path = world.directory / "policy.yaml"
    path.write_text(DEFAULT_POLICY)
    flags = ["--yes", "--kubeconfig", str(world.directory / "kubeconfig"), "--policy", str(path)]
    flags += ["--prometheus-url", world.prometheus.url, "--log-format", "json"]
    flags += ["--listen", "127.0.0.1:0", "--every", "1h"] if command == "run" else []
    return [command, *flags]


def _given(world: World) -> None:
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Pod", world.team, "shell", {})


def _ended(process: "subprocess.Popen[bytes]") -> list[dict[str, Any]]:
    """The changes in the log of a killed process."""
    said = process.communicate(timeout=_PATIENCE_S)[0].decode()
    assert process.returncode == -9, said
    entries = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [entry for entry in entries if "step" in entry]


def _hurry(world: World) -> None:
    """Let what the dead one holds run out in a second."""
    if world.api.get("Lease", _OWN, _OWN):
        world.api.patch("Lease", _OWN, _OWN, {"spec": {"leaseDurationSeconds": 1}})


def _assert_reconciled(world: World) -> None:
    """One fresh cycle, and all is as if nothing had happened; another one changes nothing, and undo has it all back."""
    world.api.clear_faults()
    _hurry(world)
    run = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY)
    assert run.code == 0, run.err
    made = [one for one in world.api.requests.mutating() if 200 <= one.code < 300]
    stopped = [one for one in made if one.path.endswith("/deployments/idle") and "spec" in one.json]
    evictions = [one for one in made if one.path.endswith("/shell/eviction")]
    assert (len(stopped), len(evictions)) == (1, 1)
    idle = created(world.api, "Deployment", world.team, "idle")
    notes = idle["metadata"]["annotations"]
    assert (idle["spec"]["replicas"], len(json.loads(notes["gpu-rightsizer.io/history"]))) == (0, 1)
    assert world.pods_of(world.team, "shell") == []
    assert len(world.api.list("Secret", _OWN)) == 1
    before = len(world.api.requests.mutating(include_dry_run=True))
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    after = world.api.requests.mutating(include_dry_run=True)[before:]
    kept = ("/leases", "/gpu-rightsizer-state")  # the scope has one workload less
    assert [one for one in after if not any(part in one.path for part in kept)] == []
    assert world.run("undo", "--all", "--yes").code == 0
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 2
    assert len(world.pods_of(world.team, "shell")) == 1


def _cases() -> list[Any]:
    cases = []
    for command in ("apply", "run"):
        for write in WRITES:
            for moment in MOMENTS:
                name = f"{command}-{write}-{moment}"
                marks = () if name in QUICK else pytest.mark.deep
                cases.append(pytest.param(command, write, moment, id=name, marks=marks))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("command", "write", "moment"), _cases())
def test_run_killed_at_write_is_completed_once_by_next_cycle(
    world: World, command: str, write: str, moment: str
) -> None:
    """The next cycle finishes it: each change made once, and nothing left over. The log ends with it."""
    _given(world)
    killer = _Killer(world, write, moment)
    asked = [sys.executable, "-m", "rightsizer", *_command(world, command)]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        killer.process = process
        steps = [(entry["step"], entry["name"]) for entry in _ended(process)]
    is_done = write.startswith("event") and moment == "answered"
    begun = [("outcome" if is_done else "intent", BEGUN[write])] if write in BEGUN else []
    assert steps[-1:] == begun, steps
    _assert_reconciled(world)


@pytest.mark.slow
def test_lease_of_killed_process_is_waited_out_by_new_process(world: World) -> None:
    """For one whole duration of its Lease, which is told with its name; then the fresh one does the rest."""
    _given(world)
    killer = _Killer(world, "patch", "unanswered")
    asked = [sys.executable, "-m", "rightsizer", *_command(world, "apply")]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        killer.process = process
        _ended(process)
    lease = created(world.api, "Lease", _OWN, _OWN)
    holder, lasts_s = lease["spec"]["holderIdentity"], 2
    world.api.patch("Lease", _OWN, _OWN, {"spec": {"leaseDurationSeconds": lasts_s}})
    fresh = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert fresh.returncode == 0, fresh.stderr
    assert f"{holder} holds the Lease {_OWN}; waiting up to {lasts_s} s" in fresh.stderr
    assert f"{holder} did not renew the Lease" in fresh.stderr
    assert created(world.api, "Lease", _OWN, _OWN)["spec"]["holderIdentity"] == ""  # released
    _assert_reconciled(world)


def test_lease_expired_long_ago_is_taken_over(world: World) -> None:
    """Whoever held it, and however long it says it lasts, by whichever clock."""
    spec = {
        "holderIdentity": "someone",
        "leaseDurationSeconds": 1,
        "renewTime": "2099-01-01T00:00:00.000000Z",
        "acquireTime": "2020-01-01T00:00:00.000000Z",
    }
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
    world.api.create({**lease, "metadata": {"name": _OWN, "namespace": _OWN}})
    _given(world)
    _assert_reconciled(world)
