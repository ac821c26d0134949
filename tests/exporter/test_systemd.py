"""systemd's socket activation and notifications, with the real exporter over real sockets; and the units."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Exporter, Node, ended, eventually, h100

pytestmark = pytest.mark.driver

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
# As systemd does it: the socket becomes file descriptor 3, and the variables name the process itself.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ |= {"LISTEN_FDS": sys.argv[2], "LISTEN_PID": str(os.getpid() + int(sys.argv[3]))}
os.execv(sys.executable, [sys.executable, "-m", "exporter", *sys.argv[4:]])
"""


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One GPU."""
    return make_node(h100(1))


def _activated(node: Node, handed: socket.socket, *flags: str, count: int = 1, pid_off: int = 0) -> list[str]:
    arguments = [str(handed.fileno()), str(count), str(pid_off)]
    return [sys.executable, "-c", ACTIVATE, *arguments, *node.command("--pod-resources-socket=", *flags)[3:]]


@contextlib.contextmanager
def _running(command: list[str], variables: dict[str, str], *handed: socket.socket) -> Iterator[Exporter]:
    with subprocess.Popen(
        [*command, "--log-format=json", "--interval=200ms"],
        env=variables, stderr=subprocess.PIPE, text=True, pass_fds=[one.fileno() for one in handed],
    ) as process:  # fmt: skip
        try:
            yield Exporter(process)
        finally:
            process.kill()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_inherited_socket_is_served(family: socket.AddressFamily, node: Node) -> None:
    """The exporter serves on systemd's socket, ignores --listen, and leaves the socket listening when it ends."""
    host = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}[family]
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        command = _activated(node, listener, "--listen=127.0.0.1:1")
        for _ in range(2):
            with _running(command, node.environment(), listener) as exporter:
                assert exporter.url.endswith(f":{port}")
                assert exporter.get("/healthz")[0] == 200
                assert exporter.stop() == 0
        with socket.create_connection((host, port), timeout=PATIENCE_S):
            pass


def test_inherited_socket_for_another_process_is_ignored(node: Node) -> None:
    """Variables for another process, inherited through a shell, are ignored."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = _activated(node, listener, "--listen=127.0.0.1:0", pid_off=1)
        with _running(command, node.environment(), listener) as exporter:
            assert exporter.url != f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert exporter.get("/healthz")[0] == 200


def test_two_inherited_sockets_are_refused(node: Node) -> None:
    """More than one socket is refused with one line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run(
            _activated(node, listener, count=2), env=node.environment(), pass_fds=[listener.fileno()],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "error: systemd passed 2 sockets; set one ListenStream= in gpu-exporter.socket\n",
    )


def test_inherited_socket_of_another_kind_is_refused(node: Node) -> None:
    """A socket that is not a listening TCP socket is refused, with the remedy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        done = subprocess.run(
            _activated(node, other), env=node.environment(), pass_fds=[other.fileno()],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        (
            "error: systemd passed a socket that is not a listening TCP socket; set ListenStream=9400 and "
            "Accept=no in gpu-exporter.socket\n"
        ),
    )


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified_after_the_first_reading(
    abstract: bool, node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """READY is sent after the first reading and not before, STOPPING at the end."""
    name = f"@gpu-exporter-{os.getpid()}" if abstract else str(tmp_path_factory.mktemp("n") / "notify")
    node.board.fault("nvmlDeviceGetPowerUsage", hang=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0") if abstract else name)
        systemd.settimeout(PATIENCE_S)
        command = node.command("--listen=127.0.0.1:0", "--pod-resources-socket=")
        with _running(command, node.environment(NOTIFY_SOCKET=name)) as exporter:
            assert exporter.get("/readyz") == (503, "the GPUs have not been read yet\n")
            systemd.settimeout(0)
            with pytest.raises(BlockingIOError):
                systemd.recv(100)
            node.board.clear_faults()
            systemd.settimeout(PATIENCE_S)
            assert systemd.recv(100) == b"READY=1"
            assert exporter.get("/readyz")[0] in {200, 503}
            assert exporter.stop() == 0
            assert systemd.recv(100) == b"STOPPING=1"


def test_missing_notify_socket_does_not_stop_the_exporter(node: Node) -> None:
    """A missing notification socket causes only a warning."""
    command = node.command("--listen=127.0.0.1:0", "--pod-resources-socket=")
    with _running(command, node.environment(NOTIFY_SOCKET="/nowhere/notify")) as exporter:
        eventually(lambda: exporter.messages("notifying systemd of READY=1: No such file or directory"))
        with urllib.request.urlopen(f"{exporter.url}/healthz", timeout=PATIENCE_S) as reply:
            assert reply.status == 200


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_units_are_valid(tmp_path: Path) -> None:
    """systemd finds no problem in the units."""  # noqa: D403 - a name
    for unit in UNITS.iterdir():
        here = f"ExecStart={sys.executable}"
        (tmp_path / unit.name).write_text(
            unit.read_text().replace("ExecStart=/usr/local/bin/gpu-exporter", here)
        )
    units = sorted(str(path) for path in tmp_path.iterdir())
    done = ended(["systemd-analyze", "verify", "--man=no", *units], dict(os.environ))
    complaints = [line for line in done.err.splitlines() if "gpu-exporter" in line]
    assert (done.code, complaints) == (0, [])
