"""`make controlplane`, `make node`: builds what is missing from its pinned Go modules into the user's cache."""

import argparse
import contextlib
import fcntl
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.cache import CacheError
from simulator.controlplane.programs import (
    MODULES,
    NODE,
    OPERATORS,
    PROGRAMS,
    MissingProgramsError,
    Program,
    built,
    find,
    link_flags,
    missing,
    require_known_release,
)
from simulator.realnode.obstacles import obstacle

_TELL_EVERY_S = 15.0
_TAIL_LINES = 20
_GO_LINE = re.compile(r"^go (?P<version>\S+)$", re.MULTILINE)


class BuildError(Exception):
    """A program could not be built; the message says why."""


def build_all(programs: Sequence[Program]) -> None:
    """Build what is missing, telling what is done and how far it is."""
    require_known_release()
    absent = dict.fromkeys(built(program) for program in missing(programs))
    if absent:
        go = _go()
        for target in absent:
            _build(go, target, [program for program in programs if built(program) == target])
    for program, path in find(programs).items():
        _say(f"{program}: {path}")


def build_operators() -> None:
    """Build the operators that are missing, each by itself: one that cannot be built is skipped, with the reason."""
    go = _go()
    for program in OPERATORS:
        try:
            _build(go, built(program), [program])
        except BuildError as error:
            _say(f"{program.name}: skipped: {error}")
        else:
            _say(f"{program.name}: {built(program) / program.name}")


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        newest = max(
            _GO_LINE.findall("\n".join(path.read_text() for path in MODULES.glob("*/go.mod"))), key=_numbers
        )
        raise BuildError(
            f"no `go` on the path. `make controlplane` installs one where there is none; or install Go {newest}, or "
            "Go 1.21 and later, which fetches the newer one itself: https://go.dev/doc/install"
        )
    return go


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _build(go: str, target: Path, programs: Sequence[Program]) -> None:
    """Build the programs of one folder and move it into place whole."""
    module = programs[0].module
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_name(f".{target.name}.lock")):
        if target.exists():  # another process built it in the meantime
            return
        began = time.monotonic()
        names = ", ".join(program.name for program in programs)
        work = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
        try:
            _say(f"{names}: fetching modules")
            total = len(
                _run(go, ["list", "-deps", *(program.package for program in programs)], module, names)
            )
            for program in programs:
                flags = ["-trimpath", "-ldflags", link_flags(module), "-o", str(work / program.name)]
                _run(go, ["build", "-v", *flags, program.package], module, program.name, total=total)
                if program.of:
                    (work / f"{program.name}.yaml").write_text(_manifests(go, program))
            work.chmod(0o755)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        _say(f"{names}: built in {_duration(time.monotonic() - began)}")


def _manifests(go: str, program: Program) -> str:
    """The definitions and webhooks of an operator, as its module has them."""
    folder = _run(go, ["list", "-m", "-f", "{{.Dir}}", program.of], program.module, program.name)[-1]
    paths = [path for pattern in program.manifests for path in sorted(Path(folder).glob(pattern))]
    return "\n---\n".join(path.read_text() for path in paths)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two test runs that start at once build once."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process is building; waiting for it ({path})")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(go: str, arguments: list[str], module: str, what: str, *, total: int = 0) -> list[str]:
    """Run Go in a module's folder, telling from time to time how many lines it has printed; its lines."""
    # The caller's own Go settings for other projects must not change what comes out; its proxy and cache do not.
    env = os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0", "GO111MODULE": "on"}
    env.pop("GOOS", None)
    env.pop("GOARCH", None)
    process = subprocess.Popen(
        [go, *arguments],
        cwd=MODULES / module,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        lines = _follow(process, what, total)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        tail = "\n".join(f"  | {line}" for line in lines[-_TAIL_LINES:])
        raise BuildError(f"{what}: go {arguments[0]} ended with {process.returncode}\n{tail}")
    return lines


def _follow(process: subprocess.Popen[str], what: str, total: int) -> list[str]:
    arriving: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process, arriving), daemon=True).start()
    lines: list[str] = []
    compiled = 0
    began = told = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            line = arriving.get(timeout=1.0)
            if line is None:
                break
            lines.append(line)
            compiled += not line.startswith("go: ")
        now = time.monotonic()
        if now - told >= _TELL_EVERY_S:
            told = now
            done = f"{compiled} of at most {total} packages" if total else "still at it"
            _say(f"{what}: {done}, {_duration(now - began)}")
    process.wait()
    return lines


def _read(process: subprocess.Popen[str], arriving: queue.Queue[str | None]) -> None:
    assert process.stdout is not None  # noqa: S101 - it was started with a pipe
    with process.stdout as output:
        for line in output:
            arriving.put(line.rstrip("\n"))
    arriving.put(None)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _say(line: str) -> None:
    print(f"[controlplane] {line}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Build what is missing; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m simulator.controlplane.build",
        description=f"Builds {', '.join(program.name for program in PROGRAMS)} from the Go modules pinned in "
        f"{MODULES.relative_to(MODULES.parents[2])}, once, into the user's cache (XDG_CACHE_HOME).",
    )
    parser.add_argument(
        "--operators",
        action="store_true",
        help=f"build {', '.join(program.name for program in OPERATORS)} in their place",
    )
    parser.add_argument(
        "--node",
        action="store_true",
        help=f"build {', '.join(program.name for program in NODE)} in their place",
    )
    arguments = parser.parse_args(argv)
    if arguments.node and (reason := obstacle()):
        _say(f"no real node is built: {reason}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.operators:
            build_operators()
        else:
            build_all(NODE if arguments.node else PROGRAMS)
    except KeyboardInterrupt:
        _say("ended; what was finished is kept")
        return 130
    except (BuildError, MissingProgramsError, CacheError, OSError) as error:
        print(f"[controlplane] {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
