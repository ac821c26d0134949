"""Children end with their parent, however it ends, and say why they did not start."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.processes import Child, ProcessError, Server, free_port

ROOT = Path(__file__).parents[2]
SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


def _wait(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except FileNotFoundError:
        return False


def test_child_is_terminated_at_end_of_block(tmp_path: Path) -> None:
    """Leaving the block ends the child by SIGTERM."""
    with Child("sleeper", SLEEPER, log=tmp_path / "log") as child:
        assert child.is_running
    assert not _is_alive(child.pid)
    assert child.stop() == -signal.SIGTERM


def test_child_ignoring_sigterm_is_killed(tmp_path: Path) -> None:
    """After the grace period comes SIGKILL."""
    child = Child("stubborn", STUBBORN, log=tmp_path / "log")
    child.wait_until(lambda: "up" in child.tail(), timeout_s=300)
    assert child.stop(grace_s=0.1) == -signal.SIGKILL


def test_child_process_group_ends_with_child(tmp_path: Path) -> None:
    """The whole process group ends, not the leader alone."""
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait"
    with Child("parent", ["sh", "-c", script], log=tmp_path / "log"):
        _wait(pid_file.exists)
        grandchild = int(pid_file.read_text())
        assert _is_alive(grandchild)
    _wait(lambda: not _is_alive(grandchild))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_child_of_killed_parent_dies(tmp_path: Path, number: signal.Signals) -> None:
    """A parent that is killed, and cannot clean up, leaves no child behind."""
    script = f"""
import time
from pathlib import Path
from simulator.processes import Child
child = Child("sleeper", {SLEEPER!r}, log=Path({str(tmp_path / "log")!r}))
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        _wait(lambda: b"sleep(600)" in Path(f"/proc/{pid}/cmdline").read_bytes())
        _wait(lambda: b"prctl" not in Path(f"/proc/{pid}/cmdline").read_bytes())
        parent.send_signal(number)
        parent.wait()
        _wait(lambda: not _is_alive(pid))


def test_child_failing_at_start_reports_its_log(tmp_path: Path) -> None:
    """The error names the program, its exit code, its log and the end of it."""
    log = tmp_path / "log"
    with (
        Child("grumbler", ["sh", "-c", "echo no luck; exit 3"], log=log) as child,
        pytest.raises(ProcessError, match=rf"grumbler ended at start with code 3\n.*{log}:\n  \| no luck"),
    ):
        child.wait_until(lambda: False, timeout_s=300)


def test_child_never_ready_raises_after_timeout(tmp_path: Path) -> None:
    """After the time limit an error names it."""
    with (
        Child("sleeper", SLEEPER, log=tmp_path / "log") as child,
        pytest.raises(ProcessError, match=r"sleeper was not ready within 0\.1 s"),
    ):
        child.wait_until(lambda: False, timeout_s=0.1)


def test_unknown_program_is_reported_in_log(tmp_path: Path) -> None:
    """A program that does not exist ends the child, whose log says so."""
    with (
        Child("ghost", ["/does/not/exist"], log=tmp_path / "log") as child,
        pytest.raises(ProcessError, match="No such file"),
    ):
        child.wait_until(lambda: False, timeout_s=300)


def test_server_with_taken_port_starts_on_another(tmp_path: Path) -> None:
    """Losing the race for a port costs an attempt, not the start."""
    tries: list[int] = []

    def command(port: int) -> list[str]:
        tries.append(port)
        if len(tries) == 1:
            return ["sh", "-c", "echo address already in use; exit 1"]
        return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]

    server = Server("files", command, ready_path="/", log=tmp_path / "log")
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(server.stop)
        server.start()
        assert server.get("/")[0] == 200
        assert server.address == f"127.0.0.1:{tries[1]}"
        assert len(tries) == 2
    with pytest.raises(OSError, match="refused"):
        server.get("/")


def test_child_output_goes_to_log_with_given_environment(tmp_path: Path) -> None:
    """A child sees only the environment that it is given."""
    env = {"PATH": os.environ["PATH"], "MARK": "yes"}
    child = Child("env", ["sh", "-c", "echo $MARK$HOME"], log=tmp_path / "logs" / "env.log", env=env)
    _wait(lambda: not child.is_running)
    assert (tmp_path / "logs" / "env.log").read_text() == "yes\n"


def test_free_ports_differ_also_between_processes() -> None:
    """Of 50 ports that each of two processes is given, none is given twice or given to connections.

    A process keeps its block until it ends, so both wait for their input to end.
    """
    script = (
        "import sys; from simulator.processes import free_port; "
        "print(*(free_port() for _ in range(50)), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            )
            for _ in range(2)
        ]
        lines = [one.stdout.readline() for one in both if one.stdout is not None]
        for one in both:
            one.communicate(timeout=60)
    ports = [int(port) for line in lines for port in line.split()]
    assert len(set(ports)) == 100
    assert max(ports) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with socket.create_server(("127.0.0.1", free_port())):
        pass
