"""A control plane whose kube-scheduler asks gpu-rightsizer's extender, as deploy/examples configures it."""

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
import yaml

from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import find
from simulator.processes import free_port
from tests.controlplane.world import RealWorld

EXAMPLE = Path(__file__).parents[2] / "deploy/examples/scheduler-extender/kube-scheduler.yaml"

START_S = 300.0
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
                world.api.eventually(lambda: self.get("/readyz") == "ok\n", timeout_s=START_S)
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
