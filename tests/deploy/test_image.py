"""The image: its Dockerfile passes a linter, and its instructions run here without a builder."""

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from tests.deploy.dockerfile import Instruction, Rehearsal, base_environment, ignored, stages_of

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
LOCKS = ("exporter", "rightsizer")
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
_IMPORT_ALL = """
import json, pkgutil, importlib, sys
import exporter, rightsizer, rightsizer_history
files = {}
for package in (exporter, rightsizer, rightsizer_history):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith(("__main__", ".mcp_command")):  # which needs the extra mcp
            files[found.name] = importlib.import_module(found.name).__file__
print(json.dumps({"path": sys.path, "files": files}))
"""


def _stages() -> tuple[list[Instruction], list[Instruction]]:
    build, final = stages_of(DOCKERFILE.read_text())
    return build, final


def _texts(stage: list[Instruction], word: str) -> list[str]:
    return [one.text for one in stage if one.word == word]


def test_dockerfile_passes_hadolint() -> None:
    """Hadolint, with all its rules and its warnings as errors."""
    hadolint = Path(sys.executable).with_name("hadolint")
    run = subprocess.run(
        [hadolint, "--failure-threshold", "style", DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, "")


def test_image_has_both_programs_on_path() -> None:
    """The entry point is the exporter's (tests/exporter/dcgm/test_entry_point.py); pods name the other program."""
    _, final = _stages()
    assert _texts(final, "ENTRYPOINT") == ['["gpu-exporter"]']
    (environment,) = _texts(final, "ENV")
    assert 'PATH="${PREFIX}/bin:${PATH}"' in environment


def test_image_label_has_version() -> None:
    """The default of VERSION is the package's own."""
    _, final = _stages()
    assert f"VERSION={importlib.metadata.version('gpu-rightsizer')}" in _texts(final, "ARG")
    (labels,) = _texts(final, "LABEL")
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f'org.opencontainers.image.{label}="' in labels


def test_libraries_are_pinned_by_hash() -> None:
    """Each `pip install` takes a lock file by its hashes, but for the wheel that was just built."""
    build, _ = _stages()
    installs = [
        part for run in _texts(build, "RUN") for part in re.split(r" *&& *", run) if " install " in part
    ]
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes" in install or "--no-index --no-deps" in install, install


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("rightsizer/cli/plan_command.py", False),
        ("requirements/build.lock", False),
        ("pyproject.toml", False),
        ("hatch_build.py", False),
        ("rightsizer/__pycache__/model.cpython-311.pyc", True),
        ("requirements/README.md", True),
        ("simulator/demo.py", True),
        (".git/config", True),
        (".venv/pyvenv.cfg", True),
    ],
)
def test_build_context_has_only_needed_files(path: str, kept: bool) -> None:
    """Sources and lock files; neither history nor tests nor caches."""
    patterns = (ROOT / ".dockerignore").read_text().splitlines()[1:]
    assert ignored(patterns, PurePosixPath(path)) is kept


@pytest.mark.parametrize("lock", ["rightsizer", "aws"])
def test_lock_files_of_both_programs_agree(lock: str) -> None:
    """What stands in both lock files has one version, so both programs fit into one image, also with AWS's library."""
    pins = [_pins("exporter"), _pins(lock)]
    for name in pins[0].keys() & pins[1].keys():
        assert pins[0][name] == pins[1][name]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image's PREFIX would hold, after all instructions of both stages."""
    return _install(tmp_path_factory.mktemp("image"))


def _install(folder: Path) -> Path:
    prefix = folder / "opt" / "gpu-rightsizer"
    (folder / "opt").mkdir()
    base = folder / "base"
    for name in ("lib/python3.11/site-packages/pip", "lib/python3.11/ensurepip", "bin"):
        (base / name).mkdir(parents=True)
    for name in ("python3.11", "pip3"):
        (base / "bin" / name).touch()
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    rehearsal = Rehearsal(
        context=ROOT,
        root=folder / "root",
        arguments={"PREFIX": str(prefix), "PYTHON_ROOT": str(base)},
        environment=base_environment(python, folder / "path"),
    )
    for stage in _stages():
        rehearsal.carry_out(stage)
    assert sorted(path.name for path in base.rglob("*")) == [
        "bin",
        "lib",
        "python3.11",
        "python3.11",
        "site-packages",
    ]
    shutil.rmtree(folder / "root")  # of the first stage only PREFIX reaches the image
    return prefix


def _run(prefix: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """As in a container: from `/`, with the image's environment and nothing else."""
    environment = {"PATH": f"{prefix}/bin", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [prefix / "bin" / command[0], *command[1:]],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("image")
@pytest.mark.parametrize("program", ["gpu-exporter", "gpu-rightsizer"])
def test_installed_program_answers(installed: Path, program: str) -> None:
    """--version and --help, from what the RUN instructions installed, leaving every file as it was."""
    before = _listing(installed)
    version = _run(installed, program, "--version")
    assert version.stdout.strip() == f"{program} {importlib.metadata.version('gpu-rightsizer')}"
    usage = _run(installed, program, "--help")
    assert (usage.returncode, usage.stderr) == (0, "")
    assert usage.stdout.startswith(f"usage: {program}")
    assert _listing(installed) == before


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("image")
def test_installed_modules_are_complete(installed: Path) -> None:
    """All modules of both programs are imported from the prefix, with their libraries; nothing of the checkout is."""
    run = _run(installed, "python", "-c", _IMPORT_ALL)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found["files"]) > 100
    assert all(path.startswith(f"{installed}/lib/") for path in found["files"].values())
    assert not any(str(ROOT) in path for path in found["path"])


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("image")
def test_installed_libraries_equal_lock_files(installed: Path) -> None:
    """The libraries of both locks and our own package; no pip, no compiler's leavings, only our commands."""
    found = {
        re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower(): dist.version
        for dist in importlib.metadata.distributions(
            path=[str(next(installed.glob("lib/python3*/site-packages")))]
        )
    }
    wanted = {name: version for lock in LOCKS for name, version in _pins(lock).items()}
    assert found == wanted | {"gpu-rightsizer": importlib.metadata.version("gpu-rightsizer")}
    commands = {path.name for path in (installed / "bin").iterdir() if not path.name.startswith("python")}
    assert commands == {"gpu-exporter", "gpu-rightsizer"}


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("image")
def test_installed_modules_are_compiled_by_content(installed: Path) -> None:
    """Each source has its compiled twin, which is valid without a look at dates, and everything has one date."""
    sources = [path for path in installed.rglob("*.py") if "tests" not in path.parts]
    for source in sources:
        (compiled,) = source.parent.glob(f"__pycache__/{source.stem}.cpython-*.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\x00\x00\x00"  # PEP 552: by hash, unchecked
    assert {path.lstat().st_mtime for path in installed.rglob("*")} == {1580601600}


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("image")
def test_two_builds_are_identical(installed: Path) -> None:
    """Built again at the same place, every file has the same bytes, mode and date."""
    before, folder = _listing(installed), installed.parents[1]
    folder.rename(folder.with_name("before"))
    folder.mkdir()
    differing = {path for path, _ in before.items() ^ _listing(_install(folder)).items()}
    assert differing == set()


@pytest.mark.deep
@pytest.mark.parametrize("platform", ["x86_64-manylinux_2_28", "aarch64-manylinux_2_28"])
def test_platform_has_wheel_for_every_library(platform: str, tmp_path: Path) -> None:
    """Nothing has to be compiled on amd64 or arm64: the index has a wheel of every pinned library."""
    uv = Path(sys.executable).with_name("uv")
    locks = [part for name in LOCKS for part in ("-r", str(ROOT / f"requirements/{name}.lock"))]
    flags = ["--dry-run", "--only-binary", ":all:", "--require-hashes", "--python-platform", platform]
    command = [
        str(uv),
        "pip",
        "install",
        *flags,
        "--python-version",
        "3.11",
        "--target",
        str(tmp_path),
        *locks,
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def _pins(lock: str) -> dict[str, str]:
    return dict(_PIN.findall((ROOT / f"requirements/{lock}.lock").read_text()))


def _listing(folder: Path) -> Mapping[str, str]:
    """Each path with its mode, date and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        digest = hashlib.sha256(content if isinstance(content, bytes) else str(content).encode()).hexdigest()
        found[str(path.relative_to(folder))] = f"{status.st_mode:o} {status.st_mtime} {digest}"
    return found
