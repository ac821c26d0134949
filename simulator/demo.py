"""`make demo`: plan, apply and undo once on a cluster; `python -m simulator.demo --help`."""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from simulator.cache import CacheError
from simulator.cluster import Cluster
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import MissingProgramsError, Programs, find
from simulator.gpus import DriverError
from simulator.kept_demo import KeptDemo, objects_of
from simulator.kube_state import Objects
from simulator.kubeclient import Endpoint, KubeClient, KubeClientError
from simulator.processes import ProcessError
from simulator.prometheus import Prometheus
from simulator.specfile import preset

STEP_S = 15
"""Scrape interval, of the history and live."""
STATE_NAMESPACE = "gpu-rightsizer"
INTERRUPTED = 130
_BAR = 40
_ALLOCATED = 'count(DCGM_FI_DEV_FB_USED{exported_pod!=""})'


class DemoError(Exception):
    """A step of the demo failed."""


class Demo:
    """One run of the demo; with `programs`, on a real control plane."""

    def __init__(self, directory: Path, policy: Path, *, programs: Programs | None) -> None:
        self._directory = directory
        self._policy = policy
        self._programs = programs
        self._began = time.monotonic()
        self.plan = directory / "plan.json"
        self.outcome = directory / "outcome.json"
        self.page = directory / "plan.html"
        self._ledger = ["--ledger", str(directory / "ledger")]

    def run(self, *, keep: bool) -> None:
        """Walk through all steps; with `keep` leave everything running until Ctrl-C."""
        with contextlib.ExitStack() as stack:
            cluster, prometheus = self._start(stack)
            self._cluster, self._prometheus = cluster, prometheus
            self._client = KubeClient(Endpoint.from_kubeconfig(cluster.kubeconfig))
            self._client.create("/api/v1/namespaces", _namespace(STATE_NAMESPACE))
            before = objects_of(self._client)
            self._show_plan()
            acted = self._apply()
            self._show_freed(acted)
            self._undo(acted[0])
            self._conclude()
            if keep:
                self._keep(before)

    # --- the steps, in order

    def _start(self, stack: contextlib.ExitStack) -> tuple[Cluster, Prometheus]:
        spec = preset("demo")
        gpus = sum(len(node.gpus) for node in spec.nodes)
        self._step(f"start a cluster: {len(spec.nodes)} nodes, {gpus} GPUs, {len(spec.workloads)} workloads")
        kubeconfig = self._start_control_plane(stack)
        cluster = stack.enter_context(
            Cluster(spec, self._directory / "cluster", kubeconfig=kubeconfig, say=_say)
        )
        prometheus = stack.enter_context(
            Prometheus(
                self._directory / "prometheus",
                targets=cluster.targets,
                scrape_interval_s=STEP_S,
                honor_labels=False,
            )
        )
        cluster.announce(prometheus)
        _say("writing a day of history into a real Prometheus")
        count = cluster.write_history(prometheus, hours=24.5, step_s=STEP_S)
        _say(f"wrote {count:,} samples")
        return cluster, prometheus

    def _start_control_plane(self, stack: contextlib.ExitStack) -> Path | None:
        if self._programs is None:
            return None
        with _waiting("for etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok"):
            plane = stack.enter_context(ControlPlane(self._directory / "controlplane", self._programs))
        version = KubeClient(plane.endpoint).get("/version")["gitVersion"]
        _say(f"a real Kubernetes {version} serves at {plane.endpoint.url}")
        return plane.kubeconfig

    def _show_plan(self) -> None:
        self._step("plan: what each workload holds and uses, and what should change; changes nothing")
        self._rightsizer("plan", "--save", str(self.plan), *self._ledger)
        self._rightsizer("plan", "serving/Deployment/old-demo")
        self._rightsizer("plan", "-o", "html", to=self.page)

    def _apply(self) -> list[dict[str, Any]]:
        self._step("apply: make the changes of rules with mode: enforce, each with an undo record")
        # Only series that were scraped end when their pods do; those of the history alone would linger.
        scraped = f"count(scrape_samples_scraped) == {len(self._cluster.exporters)}"
        with _waiting(f"for Prometheus to scrape all exporters (interval {STEP_S} s)"):
            self._prometheus.wait_for(scraped, timeout_s=60.0)
        print()
        self._allocated = self._count_allocated()
        self._changed_s = time.time()
        flags = ["--plan", str(self.plan), "--yes", "--save", str(self.outcome), *self._ledger]
        self._rightsizer("apply", *flags, since="APPLY CHANGES")
        items: list[dict[str, Any]] = json.loads(self.outcome.read_text())["items"]
        acted = [item for item in items if item["result"] == "done" and item["action"] != "complete"]
        if not acted:
            raise DemoError(f"apply changed nothing; see {self.outcome}")
        return acted

    def _show_freed(self, acted: Sequence[dict[str, Any]]) -> None:
        self._step("check: do API server, exporters and Prometheus show the GPUs as free?")
        pods = {
            (item["namespace"], pod)
            for item in json.loads(self.plan.read_text())["items"]
            for pod in item["pods"]
            if any(item["uid"] == done["uid"] for done in acted)
        }
        by_uid = {item["uid"]: item for item in json.loads(self.plan.read_text())["items"]}
        freed = sum(
            item["gpus"] if item["action"] == "resize" else _devices(by_uid[item["uid"]]) for item in acted
        )
        expected = self._allocated - freed
        with _waiting(f"for {len(pods)} pods to terminate"):
            _until(lambda: not pods & self._pods(), "the pods of the stopped workloads to terminate")
        with _waiting("for the exporters to drop the labels of these pods"):
            _until(lambda: not pods & self._labelled(), "the exporters to drop the labels of these pods")
        with _waiting(f"for Prometheus to scrape (interval {STEP_S} s)"):
            _until(lambda: self._count_allocated() <= expected, f"Prometheus to see {freed} of them free")
        _say(
            f"Prometheus saw pods on {self._allocated} devices (GPUs, MIG instances, shares) before apply, "
            f"and sees them on {self._count_allocated()} now. In whole GPUs:"
        )
        self._left = self._count_allocated()
        self._show_bars(acted)

    def _show_bars(self, acted: Sequence[dict[str, Any]]) -> None:
        """Held GPUs of all, before and after, and the used ones."""
        totals = json.loads(self.plan.read_text())["totals"]
        gpus, held = totals["fleet"]["gpus"], totals["fleet"]["held"]
        left = held - sum(item["gpus"] for item in acted)
        print()
        for name, number in (
            ("held before", held),
            ("held now", left),
            ("used", totals["account"]["gpusUsed"]),
        ):
            bar = "█" * round(number / gpus * _BAR)
            _say(f"{name:11}  {bar:·<{_BAR}}  {number:4.1f} of {gpus:g} GPUs")
        planned = {item["uid"]: item for item in json.loads(self.plan.read_text())["items"]}
        rates = [(planned[item["uid"]], item["gpus"]) for item in acted]
        hourly = sum((one["costPerHour"] or 0.0) / one["gpus"] * number for one, number in rates)
        _say(
            f"{'freed':11}  {held - left:.1f} GPUs, worth {hourly:.0f} {totals['prices']['currency']} an hour"
        )

    def _undo(self, item: dict[str, str]) -> None:
        name = f"{item['namespace']}/{item['kind']}/{item['name']}"
        self._step(f"undo: restore {name}")
        self._rightsizer("undo", name, "--yes")
        (before,) = (
            len(planned["pods"])
            for planned in json.loads(self.plan.read_text())["items"]
            if planned["uid"] == item["uid"]
        )
        with _waiting(f"for its {before} pods to run and to appear in the exporters' metrics"):
            _until(lambda: self._running(item["name"]) == before, f"its {before} pods to run")

    def _conclude(self) -> None:
        took = time.monotonic() - self._began
        self._step(f"done in {took:.0f} s")
        for path in (self.page, self.plan, self.outcome):
            print(f"  {os.path.relpath(path)}")
        print(
            f"  {os.path.relpath(self._directory / 'cluster')}/*.log, {os.path.relpath(self._directory)}/prometheus/"
        )

    def _keep(self, before: Objects) -> None:
        self._step("keep: rules, alerts, kube-state-metrics' series, the dashboard, and `run` each minute")
        with contextlib.ExitStack() as stack:
            with _waiting(f"for Prometheus to scrape what is back (interval {STEP_S} s)"):
                _until(lambda: self._count_allocated() > self._left, "Prometheus to see what was undone")
            with _waiting("for gpu-rightsizer run, and for Prometheus to read its rules"):
                kept = KeptDemo(
                    self._directory,
                    self._client,
                    self._prometheus,
                    self._settings(),
                    before=before,
                    changed_s=self._changed_s,
                )
                stack.enter_context(kept)
            self._print_addresses(kept)
            while True:
                signal.pause()

    def _print_addresses(self, kept: KeptDemo) -> None:
        print("\n\nThe cluster keeps running. In another terminal:\n")
        for name, value in self._settings().items():
            print(f"  export {name}={value}")
        program = Path(sys.executable).parent / "gpu-rightsizer"
        print(f"  {program} plan\n  {program} report --ledger {kept.ledger}\n  kubectl get pods -A\n")
        print(f"  {kept.dashboard_url}   (dashboard)")
        print(f"  {self._prometheus.url}/alerts   (Prometheus, with rules and alerts)")
        print(f"  {kept.run.url}/metrics   (gpu-rightsizer run)")
        for node, exporter in self._cluster.exporters.items():
            print(f"  {exporter.url}/metrics   ({node})")
        print("\nCtrl-C stops the cluster.", flush=True)

    # --- how they do it

    def _settings(self) -> dict[str, str]:
        """What both the demo's commands and, with --keep, the person at the terminal use."""
        return {
            "KUBECONFIG": str(self._cluster.kubeconfig),
            "GPU_RIGHTSIZER_PROMETHEUS_URL": self._prometheus.url,
            "GPU_RIGHTSIZER_POLICY": str(self._policy),
        }

    def _rightsizer(self, command: str, *flags: str, since: str = "", to: Path | None = None) -> None:
        """Run one command as a person would, and show what it printed, from the text `since` on, or keep it in `to`."""
        kept = [">", os.path.relpath(to)] if to else []
        shown = " ".join(["$ gpu-rightsizer", command, *map(_relative, flags), *kept])
        print(f"  {shown}\n", flush=True)
        colour = "always" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else "never"
        run = subprocess.run(
            [sys.executable, "-m", "rightsizer", command, *flags, "--color", colour],
            env={**os.environ, **self._settings()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        with (self._directory / "commands.log").open("a") as log:
            log.write(f"{shown}\n{run.stdout}{run.stderr}\n")
        if run.returncode:
            raise DemoError(f"gpu-rightsizer {command} ended with {run.returncode}: {run.stderr.strip()}")
        if to:
            to.write_text(run.stdout)
        else:
            print(run.stdout[run.stdout.find(since) :], flush=True)

    def _pods(self) -> set[tuple[str, str]]:
        items = self._client.get("/api/v1/pods")["items"]
        return {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items}

    def _labelled(self) -> set[tuple[str, str]]:
        """The pods that the exporters name on their GPUs right now."""
        found = set()
        for exporter in self._cluster.exporters.values():
            for line in exporter.get("/metrics")[1].splitlines():
                if line.startswith("DCGM_FI_DEV_FB_USED{") and 'pod="' in line:
                    found.add((_label(line, "namespace"), _label(line, "pod")))
        return found

    def _running(self, name: str) -> int:
        return sum(pod.startswith(f"{name}-") for _, pod in self._labelled())

    def _count_allocated(self) -> int:
        (answer,) = self._prometheus.query(_ALLOCATED)
        return int(answer["value"][1])

    def _step(self, words: str) -> None:
        print(f"\n=== {words}\n", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m simulator.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("build/demo"), help="directory for all output")
    parser.add_argument("--policy", type=Path, default=Path("simulator/demo-policy.yaml"), help="policy file")
    parser.add_argument(
        "--real",
        action="store_true",
        help="on a real control plane, built by `make controlplane`, instead of the simulated API server",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the cluster running at the end, until Ctrl-C"
    )
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    directory = args.directory.absolute()
    try:
        programs = find() if args.real else None
        with _fresh(directory):
            Demo(directory, args.policy.absolute(), programs=programs).run(keep=args.keep)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; all its processes are stopped", file=sys.stderr)
        return 0 if args.keep else INTERRUPTED
    except (
        DemoError,
        ProcessError,
        KubeClientError,
        DriverError,
        MissingProgramsError,
        CacheError,
        OSError,
    ) as error:
        print(f"\ndemo: {error}\nlogs: {directory}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _fresh(directory: Path) -> Iterator[None]:
    """Empty the folder, under a lock that ends with the process."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{directory}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoError(
                f"another demo is running in {os.path.relpath(directory)}, perhaps with KEEP=1; stop it with Ctrl-C, "
                "or use another directory: python -m simulator.demo --directory build/another"
            ) from error
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        yield


def _namespace(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _devices(item: dict[str, Any]) -> int:
    """GPUs, or MIG instances or shares, that a workload of the plan holds: each is a device with series of its own."""
    return int(item["migInstancesAndShares"] or item["gpus"])


def _label(line: str, name: str) -> str:
    return line.partition(f'{name}="')[2].partition('"')[0]


def _relative(flag: str) -> str:
    return os.path.relpath(flag) if flag.startswith("/") else flag


def _say(words: str) -> None:
    print(f"  {words}", flush=True)


@contextlib.contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Print what the demo waits for, and for how long."""
    print(f"  waiting {what} ...", end="", flush=True)
    began = time.monotonic()
    yield
    print(f" {time.monotonic() - began:.1f} s", flush=True)


def _until(holds: Callable[[], bool], what: str, *, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise DemoError(f"timed out after {timeout_s:.0f} s waiting for {what}")
        time.sleep(0.3)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
