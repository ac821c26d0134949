"""Whether `run` stays flat and what it keeps stays true over many cycles, while everything around it fails.

All along, pods come, change and go, and replicas work in turn; resourceVersions expire, and the API server and
Prometheus fail or are gone for a while. Each cycle compares what is watched with a list, and histories and counts of
active replicas with a query of all of it (`--verify-state`).
"""

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks._node import Process
from simulator.kube import Fault
from simulator.kube.errors import ApiError
from simulator.prometheus import Prometheus
from simulator.series_store import Series
from tests.rightsizer.metrics import ENGINE, UTIL
from tests.rightsizer.relay import Relay
from tests.rightsizer.world import DEFAULT_POLICY, World
from tests.simulator.kube.manifests import pod

_ROOT = Path(__file__).parents[1]
_CHURN_S = 0.1
_BLOCKS = 10
_PODS = 40
_SAMPLED = 0.02
"""Share of the changes with which new samples come."""
_COLUMNS = ("cycles", " failed", "compared", "untrue", "   MiB", "threads", "files", "seconds")


def _add_workloads(world: World) -> list[dict[str, str]]:
    """A few that are asked about in detail; returns the labels of a metric that tells when they work later."""
    world.add("Deployment", world.team, "works", {"usage": "busy"})
    world.add("Deployment", world.team, "quiet", {"usage": "idle"})
    world.add("StatefulSet", world.team, "web", {"usage": ["busy", "idle", "idle", "idle"], "replicas": 4})
    return [found["metric"] | {"__name__": ENGINE} for found in world.prometheus.query(UTIL)]


def _churn(
    world: World, relay: Relay, stop: threading.Event, draw: random.Random, devices: Sequence[dict[str, str]]
) -> None:
    """One change after the other, until told to stop."""
    sampled_s = 0
    while not stop.wait(_CHURN_S):
        now_s = int(time.time())
        if now_s > sampled_s and draw.random() < _SAMPLED:
            sampled_s, at = now_s, range(now_s, now_s + 1)
            world.prometheus.write(Series(each, at, [draw.choice([0, 0, 0.9])]) for each in devices)
        name = f"churn-{draw.randrange(_PODS)}"
        with contextlib.suppress(ApiError):
            match draw.choices(("change", "expire", "fail", "gone", "prometheus"), (300, 6, 6, 1, 1))[0]:
                case "change" if world.api.get("Pod", "default", name) is None:
                    world.api.create(pod(name, gpus=draw.randrange(2)))
                case "change" if draw.randrange(2):
                    world.api.delete("Pod", "default", name)
                case "change":
                    labels = {"at": str(time.monotonic())}
                    world.api.patch("Pod", "default", name, {"metadata": {"labels": labels}})
                case "expire":
                    world.api.expire_history()
                case "fail":
                    world.api.inject(Fault(draw.choice(("/pods$", "/nodes$", "")), "GET", status=503))
                case "gone":
                    world.api.inject(Fault("", times=None, drop=True))
                    stop.wait(draw.uniform(0.5, 3))
                    world.api.clear_faults()
                case _:
                    relay.is_gone = True
                    stop.wait(draw.uniform(0.5, 3))
                    relay.is_gone = False


@contextlib.contextmanager
def _running(world: World, relay: Relay) -> Iterator[Process]:
    policy, log = world.directory / "policy.yaml", world.directory / "run.log"
    policy.write_text(DEFAULT_POLICY.replace("mode: enforce", "mode: advise"))
    command = [
        sys.executable,
        "-m",
        "rightsizer",
        "run",
        "--yes",
        "--every",
        "1s",
        "--verify-state",
        "--log-level",
        "info",
    ]
    command += ["--listen", "127.0.0.1:0", "--policy", str(policy), "--prometheus-url", relay.url]
    command += ["--kubeconfig", str(world.directory / "kubeconfig")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, cwd=_ROOT, env=environment) as process,
    ):
        try:
            while "metrics on port " not in log.read_text():
                time.sleep(0.1)
            port = log.read_text().split("metrics on port ")[1].split(";")[0]
            yield Process(process.pid, f"http://127.0.0.1:{port}/metrics")
        finally:
            process.terminate()


def _metric(process: Process, name: str) -> float:
    with urllib.request.urlopen(process.url) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def main() -> int:
    """Let it run, change the world, and print what it holds after each tenth; 1 if anything watched was not true."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=1_000, help="how many in all (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the changes (default %(default)s)")
    options = parser.parse_args()
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cycle-soak-")))
        prometheus = stack.enter_context(Prometheus(folder / "prometheus"))
        world = stack.enter_context(World(folder, prometheus))
        relay = stack.enter_context(Relay(prometheus.url))
        devices = _add_workloads(world)
        process = stack.enter_context(_running(world, relay))
        given = (world, relay, stop, random.Random(options.seed), devices)
        changing = threading.Thread(target=_churn, args=given)
        changing.start()
        print(" ".join(_COLUMNS))
        began, untrue = time.monotonic(), 0.0
        try:
            for block in range(1, _BLOCKS + 1):
                while (
                    done := _metric(process, "gpu_rightsizer_runs_total")
                ) < block * options.cycles / _BLOCKS:
                    time.sleep(0.5)
                failed = _metric(process, 'gpu_rightsizer_runs_total{result="failure"}')
                compared = (folder / "run.log").read_text().count(" are as ")
                untrue = _metric(process, "gpu_rightsizer_kept_state_differences_total")
                held = (process.resident_mib, process.threads, process.descriptors)
                figures = (done, failed, compared, untrue, *held, time.monotonic() - began)
                print(
                    " ".join(f"{value:{len(name)}.0f}" for name, value in zip(_COLUMNS, figures, strict=True))
                )
                sys.stdout.flush()
        finally:
            stop.set()
            changing.join()
    return int(untrue > 0)


if __name__ == "__main__":
    sys.exit(main())
