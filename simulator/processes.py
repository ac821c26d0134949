"""Child processes that never outlive their parent.

Each child leads its own process group, and the kernel kills it when the thread that started it ends.
"""

import atexit
import contextlib
import functools
import http.client
import itertools
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

POLL_S = 0.02
_TAIL_LINES = 15
_ATTEMPTS = 3
"""A free port can be taken between finding and using it."""
_PORTS = range(12_000, 32_000)
"""Below those that the kernel gives to connections (net.ipv4.ip_local_port_range, from 32768)."""
_BLOCK = 250
"""A port whose connections ended is in use for a minute more."""

# Between fork and exec only async-signal-safe calls are allowed, and Python's preexec_fn is not one of them in a
# process with gRPC's threads. So the child asks for its parent-death signal (prctl 1) itself and then becomes the
# program; the parent may have died before that, hence the look at getppid.
_LAUNCHER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


class ProcessError(Exception):
    """A child process did not start, or ended too early."""


class Child:
    """A running program, killed with the thread that started it; its output goes to `log`."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._is_over = False
        log.parent.mkdir(parents=True, exist_ok=True)
        launcher = (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                (*launcher, *command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until `is_ready` holds."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running:
                raise ProcessError(
                    f"{self.name} ended at start with code {self._process.returncode}\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} was not ready within {timeout_s:g} s\n{self.tail()}")
            time.sleep(POLL_S)

    def tail(self) -> str:
        """The end of its log, indented, under the log's name."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"  end of {self.log}:", *(f"  | {line}" for line in lines)])

    def terminate(self) -> None:
        """Ask it to end, without waiting."""
        if self.is_running:
            self._signal(signal.SIGTERM)

    def stop(self, *, grace_s: float = 5.0) -> int:
        """End it and all it has started: SIGTERM, then SIGKILL after `grace_s` seconds; its exit status."""
        if self.is_running:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        if not self._is_over:  # its number may be another's by now
            self._signal(signal.SIGKILL)
        self._is_over = True
        return self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Server:
    """A program with an HTTP port on 127.0.0.1.

    Args:
        name: For messages.
        command: Its command line, given the port.
        ready_path: Answers 200 once it serves.
        log: File that receives its output.
        env: Its whole environment; the parent's by default.
        tls: Set for HTTPS.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        *,
        ready_path: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.port = 0
        self._command = command
        self._ready_path = ready_path
        self._env = env
        self._tls = tls
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """As host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        return self._running().pid

    def launch(self) -> None:
        """Start it on a free port, without waiting."""
        self.port = free_port()
        self._child = Child(self.name, self._command(self.port), log=self.log, env=self._env)

    def wait_ready(self, *, timeout_s: float = 100.0) -> None:
        """Wait until it serves; on another port, if the port was taken in the meantime."""
        for attempt in range(_ATTEMPTS):
            if self._child is None:
                self.launch()
            try:
                return self._running().wait_until(self._is_ready, timeout_s=timeout_s)
            except ProcessError:
                taken = "in use" in self._running().tail()
                self.stop()
                if not taken or attempt == _ATTEMPTS - 1:
                    raise
        return None

    def start(self, *, timeout_s: float = 100.0) -> None:
        """Launch it and wait until it serves; raises ProcessError."""
        self.launch()
        self.wait_ready(timeout_s=timeout_s)

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def terminate(self) -> None:
        """Ask it to end, without waiting."""
        if self._child is not None:
            self._child.terminate()

    def get(self, path: str, *, timeout_s: float = 60.0) -> tuple[int, str]:
        """Status and body of what it serves at `path`; raises OSError and http.client.HTTPException."""
        with contextlib.closing(self._connect(timeout_s)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=self._tls)

    def _running(self) -> Child:
        if self._child is None:
            raise ProcessError(f"{self.name} is not started")
        return self._child

    def _is_ready(self) -> bool:
        try:
            return self.get(self._ready_path, timeout_s=2.0)[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def free_port() -> int:
    """A free TCP port of 127.0.0.1, given to no other process of the simulator and not soon again to this one.

    Two servers with one port would look alike: the slower one seems ready because the faster one answers.
    """
    for port in itertools.islice(_claimed_ports(), _BLOCK):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ProcessError(f"{_BLOCK} ports are all in use")


@functools.cache
def _claimed_ports() -> Iterator[int]:
    """A block of ports that is this process's until it ends, over and over."""
    for start in random.sample(_PORTS[::_BLOCK], len(_PORTS) // _BLOCK):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0gpu-simulator-ports-{start}")  # an abstract name ends with its socket
        except OSError:
            claim.close()
        else:
            atexit.register(claim.close)
            return itertools.cycle(range(start, start + _BLOCK))
    raise ProcessError(f"other processes hold all ports from {_PORTS.start} to {_PORTS.stop - 1}")
