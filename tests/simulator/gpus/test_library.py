"""The library is built where it is needed, once, and says in words why it cannot be."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.driver

ROOT = pathlib.Path(__file__).parents[3]
PRINT_ENVIRONMENT = """
import json, pathlib
from simulator.gpus import DriverError, environment
try:
    print(json.dumps(environment(pathlib.Path("board"))))
except DriverError as error:
    print(f"DriverError: {error}")
"""


def start(tmp_path: pathlib.Path, **variables: str) -> "subprocess.Popen[str]":
    """A Python process that asks for the driver's environment, with a cache of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-c", PRINT_ENVIRONMENT],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )


def output(process: "subprocess.Popen[str]") -> str:
    """What it printed, once it has ended well."""
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return text.strip()


@pytest.mark.slow
def test_parallel_builds_produce_one_library(tmp_path: pathlib.Path) -> None:
    """Processes that build at the same time end up with one library and leave nothing else."""
    processes = [start(tmp_path) for _ in range(3)]
    answers = {output(process) for process in processes}
    assert len(answers) == 1
    assert str(tmp_path / "board") in answers.pop()
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["libnvidia-ml.so.1"]
    built = files[0].stat().st_mtime_ns
    output(start(tmp_path))
    assert files[0].stat().st_mtime_ns == built


def test_missing_compiler_error_names_install_command(tmp_path: pathlib.Path) -> None:
    """Without a C compiler the message names the command that brings one."""
    answer = output(start(tmp_path, PATH=str(tmp_path)))
    assert answer == (
        "DriverError: building the simulated NVIDIA driver: no C compiler (cc, gcc or clang) on the path; "
        "run: sudo apt-get install -y gcc libc6-dev"
    )


def test_failing_compiler_message_is_reported(tmp_path: pathlib.Path) -> None:
    """A compiler's complaint is part of the message, and nothing is left behind."""
    broken = tmp_path / "bin" / "cc"
    broken.parent.mkdir()
    shell = shutil.which("sh")
    broken.write_text(f'#!{shell}\n[ "$1" = --version ] || {{ echo "no stdint.h" >&2; exit 3; }}\n')
    broken.chmod(0o755)
    answer = output(start(tmp_path, PATH=str(broken.parent)))
    assert "failed with exit code 3:\nno stdint.h" in answer
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_unwritable_cache_error_names_variable(tmp_path: pathlib.Path) -> None:
    """A cache that cannot be written is named, with the variable that moves it."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    answer = output(start(tmp_path, XDG_CACHE_HOME=str(blocked)))
    assert answer.startswith(f"DriverError: building the simulated NVIDIA driver: cannot write to {blocked}")
    assert answer.endswith("set XDG_CACHE_HOME to a writable directory")


def test_unwritable_board_error_names_path(tmp_path: pathlib.Path) -> None:
    """A board in a directory that does not exist is named with the reason."""
    code = "import pathlib; from simulator.gpus import Board; from simulator.spec import NodeSpec\n"
    code += "Board(pathlib.Path('no/such/board'), NodeSpec('n', ()))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "DriverError: creating the board no/such/board: No such file or directory" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [name for name in ("gcc", "clang") if shutil.which(name)])
def test_sources_compile_without_warnings(tmp_path: pathlib.Path, compiler: str) -> None:
    """Every compiler at hand takes the sources without a warning."""
    sources = [str(path) for path in (ROOT / "simulator" / "gpus" / "native").glob("*.c")]
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-DLAYOUT_VERSION=1"]
    subprocess.run([compiler, *flags, "-o", str(tmp_path / "library"), *sources], check=True)
