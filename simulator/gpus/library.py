"""Compiles the simulated libnvidia-ml into the user's cache, once per version of its sources."""

import ctypes
import functools
import hashlib
import pathlib
import shutil
import subprocess
import tempfile

from simulator.cache import CacheError, cache_directory

LIBRARY = "libnvidia-ml.so.1"
BOARD_VARIABLE = "SIMULATOR_NVML_BOARD"

_SOURCES = pathlib.Path(__file__).with_name("native")
_COMPILERS = ("cc", "gcc", "clang")
# The tests check for warnings: new warnings of a newer compiler must not stop a demo.
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")


class DriverError(Exception):
    """The simulated driver cannot be built or used; the message says why and what to do."""


def environment(board: pathlib.Path) -> dict[str, str]:
    """The environment in which an unmodified program loads the simulated driver and sees `board`."""
    return {"LD_LIBRARY_PATH": str(library_path().parent), BOARD_VARIABLE: str(board.absolute())}


@functools.cache
def library_path() -> pathlib.Path:
    """The built library; built now if it is not."""
    compiler = _compiler()
    directory = _cache_root() / _build_key(compiler)
    library = directory / LIBRARY
    if not library.exists():
        _build(compiler, directory)
    return library


@functools.cache
def load() -> ctypes.CDLL:
    """The library in this process. It has no DT_SONAME, so pynvml here does not take it for the real one."""
    library = ctypes.CDLL(str(library_path()))
    library.simulator_publish.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t]
    library.simulator_publish.restype = None
    return library


def layout_version() -> int:
    """The fingerprint of the board's layout, which readers and writers must share."""
    return int.from_bytes(hashlib.sha256((_SOURCES / "board.h").read_bytes()).digest()[:8], "big")


def _compiler() -> str:
    for name in _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    names = f"{', '.join(_COMPILERS[:-1])} or {_COMPILERS[-1]}"
    raise DriverError(
        f"building the simulated NVIDIA driver: no C compiler ({names}) on the path; "
        "run: sudo apt-get install -y gcc libc6-dev"
    )


def _cache_root() -> pathlib.Path:
    try:
        return cache_directory("simulated-driver")
    except CacheError as error:
        raise DriverError(f"building the simulated NVIDIA driver: {error}") from error


def _build_key(compiler: str) -> str:
    """Whatever decides what comes out, as a name."""
    version = _run([compiler, "--version"])
    digest = hashlib.sha256("\0".join([compiler, version, *_FLAGS]).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, directory: pathlib.Path) -> None:
    """Compiles in a temporary folder and renames it; of parallel builds the first one wins."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        work = pathlib.Path(tempfile.mkdtemp(prefix=".building-", dir=directory.parent))
    except OSError as error:
        raise DriverError(
            f"building the simulated NVIDIA driver: cannot write to {directory.parent}: {error.strerror}; "
            "set XDG_CACHE_HOME to a writable directory"
        ) from error
    try:
        _compile(compiler, work / LIBRARY)
        work.rename(directory)
    except OSError as error:
        if not (directory / LIBRARY).exists():
            raise DriverError(
                f"building the simulated NVIDIA driver: cannot move it to {directory}: {error.strerror}"
            ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(compiler: str, target: pathlib.Path) -> None:
    sources = [str(path) for path in sorted(_SOURCES.glob("*.c"))]
    version = f"-DLAYOUT_VERSION=UINT64_C({layout_version()})"
    _run([compiler, *_FLAGS, version, "-o", str(target), *sources])


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise DriverError(
            f"building the simulated NVIDIA driver: {' '.join(command[:2])} … failed with exit code "
            f"{result.returncode}:\n{result.stderr.strip()}\n"
            "if a header is missing, run: sudo apt-get install -y libc6-dev"
        )
    return result.stdout
