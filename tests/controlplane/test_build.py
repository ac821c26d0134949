"""`make controlplane`: built once, whole or not at all, and told as it goes; with a stand-in for Go, which is slow."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.controlplane.programs import (
    KUBERNETES,
    MODULES,
    NODE,
    OPERATORS,
    PROGRAMS,
    RELEASE_VARIABLE,
    RELEASES,
    AssetsError,
    MissingProgramsError,
    find,
)

ROOT = Path(__file__).parents[2]
# Says what it was asked, then does as Go: lists packages, or writes the program it is told to.
_GO = """\
#!/bin/sh
echo "$@" >>"$GO_LOG"
case "$1" in
  list) echo a; echo b ;;
  build) {body}
    while [ "$1" != -o ]; do shift; done; echo built >"$2" ;;
esac
"""


class Builder:
    """Runs the build with a cache and a Go of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cache = directory / "cache" / "gpu-rightsizer" / "controlplane"
        self.log = directory / "go.log"
        self._bin = directory / "bin"
        self._bin.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        """With nothing of the caller's on the path but the stand-in and the shell's own tools."""
        return {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "HOME": str(self.directory),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "GO_LOG": str(self.log),
        }

    def go(self, body: str = ":") -> None:
        """Put a Go on the path whose `build` does this first."""
        path = self._bin / "go"
        path.write_text(_GO.format(body=body))
        path.chmod(0o755)

    def start(self, *flags: str) -> subprocess.Popen[str]:
        """The build, running."""
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "simulator.controlplane.build", *flags],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *flags: str) -> tuple[int, str]:
        """The build: exit status and what it printed."""
        process = self.start(*flags)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """A build in an empty cache."""
    return Builder(tmp_path)


def test_build_twice_compiles_once(builder: Builder) -> None:
    """All of them land in the cache, executable where Go makes them so; the second call asks Go for nothing."""
    builder.go()
    code, output = builder.run()
    assert code == 0, output
    for program in PROGRAMS:
        assert f"[controlplane] {program.name}: {builder.cache}" in output
        assert [path.read_text() for path in builder.cache.glob(f"*/{program.name}")] == ["built\n"]
    asked = builder.log.read_text()
    assert builder.run()[0] == 0
    assert builder.log.read_text() == asked


def test_built_program_reports_its_version(builder: Builder) -> None:
    """The API server's version is what clients and charts read; it comes from go.mod."""
    builder.go()
    assert builder.run()[0] == 0
    pinned = re.search(r"k8s.io/kubernetes (v\S+)", (MODULES / KUBERNETES / "go.mod").read_text())
    assert pinned is not None
    assert f"-X k8s.io/component-base/version.gitVersion={pinned[1]}" in builder.log.read_text()


def test_failed_build_shows_go_output_and_leaves_nothing(builder: Builder) -> None:
    """Exit 1, the end of Go's output, no folder for that module; what was finished before stays."""
    builder.go('case "$*" in *kube-scheduler*) echo "no space left on device"; exit 3 ;; esac')
    code, output = builder.run()
    assert code == 1
    assert "kube-scheduler: go build ended with 3" in output
    assert "  | no space left on device" in output
    assert "Traceback" not in output
    left = {path.name.partition("-")[0] for path in builder.cache.iterdir() if not path.name.startswith(".")}
    assert left == {"etcd"}
    assert not list(builder.cache.glob(".building-*"))


def test_operator_that_cannot_be_built_is_skipped_with_reason(builder: Builder) -> None:
    """The others are built, each in a folder of its own beside its definitions."""
    builder.go('case "$*" in *jobset*) echo "no space left on device"; exit 3 ;; esac')
    code, output = builder.run("--operators")
    assert code == 0, output
    assert "jobset: skipped: jobset: go build ended with 3\n  | no space left on device" in output
    for program in OPERATORS:
        found = {path.name for path in builder.cache.glob(f"{program.name}-*/*")}
        assert found == (set() if program.name == "jobset" else {program.name, f"{program.name}.yaml"})


def test_build_without_go_names_version(builder: Builder) -> None:
    """Exit 1 with the version, from the go.mod files."""
    code, output = builder.run()
    assert code == 1
    assert re.search(r"no `go` on the path\. .* install Go 1\.\d+", output)
    assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_leaves_nothing(builder: Builder, number: signal.Signals) -> None:
    """Neither a folder nor a process of Go's; exit 130."""
    builder.go(f"echo $$ >{builder.directory}/pid; sleep 60")
    process = builder.start()
    pid = _eventually_read(builder.directory / "pid")
    process.send_signal(number)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert not [path for path in builder.cache.iterdir() if not path.name.endswith(".lock")]
    assert not _is_running(int(pid))


def test_parallel_builds_compile_once(builder: Builder) -> None:
    """The second waits for the first, says so, and then finds everything there."""
    builder.go(f"echo $$ >{builder.directory}/pid; sleep 0.5")
    first = builder.start()
    _eventually_read(builder.directory / "pid")
    code, output = builder.run()
    assert first.communicate(timeout=60) is not None
    assert (first.returncode, code) == (0, 0)
    assert "another process is building; waiting for it" in output
    built = [line for line in builder.log.read_text().splitlines() if line.startswith("build")]
    assert len(built) == len(PROGRAMS)


@pytest.fixture
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """KUBEBUILDER_ASSETS, and beside it an empty cache."""
    folder = tmp_path / "assets"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    return folder


def test_assets_folder_is_preferred_to_cache(builder: Builder, assets: Path) -> None:
    """KUBEBUILDER_ASSETS stands before the cache; what it lacks comes from there, or is named as missing."""
    for name in ("etcd", "kube-apiserver", "kubectl"):  # what setup-envtest leaves
        (assets / name).write_text("ready-made")
    with pytest.raises(
        MissingProgramsError, match=r"no kube-controller-manager, kube-scheduler, kwok; `make controlplane`"
    ):
        find()
    builder.go()
    assert builder.run()[0] == 0
    found = find()
    assert [found[name].parent for name in ("etcd", "kube-apiserver")] == [assets, assets]
    assert found["kwok"].parent.parent == builder.cache


def test_find_without_helm_succeeds_for_control_plane(assets: Path) -> None:
    """A control plane starts without it."""
    for program in PROGRAMS:
        if program.name not in {"helm", "kustomize", "kube-state-metrics"}:
            (assets / program.name).write_text("ready-made")
    assert set(find()) == {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}
    with pytest.raises(
        MissingProgramsError, match=r"no helm, kustomize, kube-state-metrics; `make controlplane`"
    ):
        find(PROGRAMS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("assets", "has none of etcd, kube-apiserver, "),
        ("asets", "is no folder"),
        ("assets/x", "is no folder"),
    ],
    ids=["empty", "misspelt", "a-file"],
)
def test_invalid_assets_folder_is_refused(
    assets: Path, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error that names it, also where the cache has everything; nothing else is started in its stead."""
    if name.endswith("x"):
        (assets / "x").write_text("")
    folder = assets.parent / name
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    with pytest.raises(AssetsError, match=f"KUBEBUILDER_ASSETS={folder}: {words}"):
        find()
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "simulator",
            "--real",
            "--no-prometheus",
            "--directory",
            str(assets.parent / "d"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (1, f"simulator: {find_error(folder)}\n")


def find_error(folder: Path) -> str:
    """What is said of a folder."""
    with pytest.raises(AssetsError) as caught:
        find()
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_pinned_modules_are_of_one_release() -> None:
    """Each go.mod names its programs as tools; all of Kubernetes' staging repositories are of its own release."""
    programs = (*PROGRAMS, *OPERATORS, *NODE)
    for module in {program.module for program in programs}:
        text = (MODULES / module / "go.mod").read_text()
        tools = {one.package for one in programs if one.module == module and one.source is None}
        assert set(re.findall(r"^(?:tool |\t)([^\s=(]+)$", text, re.MULTILINE)) == tools


@pytest.mark.parametrize("release", RELEASES)
def test_pinned_release_of_kubernetes_is_of_one_piece(release: str) -> None:
    """All of Kubernetes' staging repositories are of its own release, and the programs are the same."""
    text = (MODULES / RELEASES[release] / "go.mod").read_text()
    tools = {one.package for one in (*PROGRAMS, *NODE) if one.module == KUBERNETES and one.source is None}
    assert set(re.findall(r"^\t([^\s=(]+)$", text, re.MULTILINE)) == tools
    (patch,) = re.findall(rf"^\tk8s.io/kubernetes v{release}\.(\S+)", text, re.MULTILINE)
    staging = re.findall(r"^\t(k8s.io/\S+) => (k8s.io/\S+) v0\.(\S+)$", text, re.MULTILINE)
    assert len(staging) > 20
    assert {(old == new, version) for old, new, version in staging} == {(True, f"{release[2:]}.{patch}")}


def test_unknown_release_of_kubernetes_is_named() -> None:
    """A slip in the variable must not lead to the tests of another release."""
    command = [sys.executable, "-m", "simulator.controlplane.build"]
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, RELEASE_VARIABLE: "1.3"}, check=False
    )
    assert run.returncode == 1
    assert run.stderr == "[controlplane] KUBERNETES=1.3: only 1.36, 1.37 are pinned\n"


def _eventually_read(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.02)
    return path.read_text().strip()


def _is_running(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    return True
