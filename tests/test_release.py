"""What a release publishes, built and installed as a user would; what runs only elsewhere is read."""

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hatch_build import with_absolute_links
from scripts.release import PLACES, make_extras, problems_of, set_version, version_of

ROOT = Path(__file__).parents[1]
URL = "https://git.example.com/some-owner/some-name"
VERSION = version_of(ROOT)
CHART = ROOT / "deploy/helm/gpu-rightsizer"
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that a version is written into."""
    for place in (*PLACES, "CHANGELOG.md"):
        for path in ROOT.glob(place):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    return tmp_path


def test_version_is_the_same_everywhere() -> None:
    """Package, exporter, chart, image and installation: only the changelog's section is written for a tag."""
    assert problems_of(ROOT, f"v{VERSION}") in ([], [f"CHANGELOG.md: has no section {VERSION}"])
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_set_version_makes_a_tag_releasable(checkout: Path) -> None:
    """Every file names the new one, none the old; other tags are refused."""
    assert problems_of(checkout, "v9.8.7") == [
        f"tag v9.8.7: pyproject.toml has version {VERSION}; run: python -m scripts.release set 9.8.7"
    ]
    changed = set_version(checkout, "9.8.7", datetime.date(2027, 1, 2))
    assert problems_of(checkout, "v9.8.7") == []
    assert {"pyproject.toml", "docs/install.md", "deploy/helm/gpu-rightsizer/Chart.yaml"} <= set(changed)
    assert "\n## Unreleased\n\n## 9.8.7 - 2027-01-02\n" in (checkout / "CHANGELOG.md").read_text()
    (checkout / "exporter/__init__.py").write_text('__version__ = "9.8.6"\n')
    assert problems_of(checkout, "v9.8.7") == ["exporter/__init__.py: does not name version 9.8.7"]


def test_readme_links_become_absolute() -> None:
    """Pages, anchors of pages and pictures, also in links; addresses and anchors of the page stay."""
    text = "[a](docs/a.md#b) ![c](d.svg) [![e](f.png)](g.md) [h](https://x.example/) [i](#j)"
    assert with_absolute_links(text, URL, "v1").count(URL) == 4
    assert (
        with_absolute_links("[a](docs/a.md#b) [i](#j)", URL, "v1")
        == f"[a]({URL}/blob/v1/docs/a.md#b) [i](#j)"
    )
    assert with_absolute_links("![c](d.svg)", URL, "v1") == f"![c]({URL}/raw/v1/d.svg)"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, the wheel built from the sdist, without git; and what `make dist` adds."""
    folder = tmp_path_factory.mktemp("dist")
    uv = Path(sys.executable).with_name("uv")
    command: list[str | Path] = [
        uv,
        "build",
        "-q",
        "--python",
        sys.executable,
        "--no-build-isolation",
        "--out-dir",
        folder,
        ROOT,
    ]
    subprocess.run(command, check=True, env={**os.environ, "REPOSITORY_URL": URL})
    make_extras(ROOT, folder, URL)
    return folder


def _metadata(text: str) -> Message:
    return Parser().parsestr(text)


@pytest.mark.slow
@pytest.mark.xdist_group("dist")
def test_packages_hold_what_pypi_and_packagers_need(dist: Path) -> None:
    """The sdist has chart and dashboards, the wheel only the programs; links and URLs are absolute."""
    with tarfile.open(dist / f"gpu_rightsizer-{VERSION}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in (
        "deploy/helm/gpu-rightsizer/Chart.yaml",
        "deploy/Dockerfile",
        "dashboards/grafana.json",
        "requirements/exporter.lock",
        "docs/install.md",
        "hatch_build.py",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", "simulator/", ".git/"))]
    with zipfile.ZipFile(dist / f"gpu_rightsizer-{VERSION}-py3-none-any.whl") as wheel:
        tops = {name.partition("/")[0] for name in wheel.namelist()}
        found = _metadata(wheel.read(f"gpu_rightsizer-{VERSION}.dist-info/METADATA").decode())
    programs = {"exporter", "rightsizer", "rightsizer_extender", "rightsizer_history"}
    assert tops == {*programs, f"gpu_rightsizer-{VERSION}.dist-info"}
    assert f"Repository, {URL}" in found.get_all("Project-URL", [])
    assert (found["Version"], found["Description-Content-Type"]) == (VERSION, "text/markdown")
    readme = str(found.get_payload())
    assert f"({URL}/raw/v{VERSION}/docs/pictures/demo.svg)" in readme
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", readme) == []


@pytest.mark.slow
@pytest.mark.xdist_group("dist")
def test_wheel_in_an_empty_environment_runs_the_rightsizer(dist: Path, tmp_path: Path) -> None:
    """As `uvx gpu-rightsizer plan` would: the package alone, with its dependencies and no extra."""
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, tmp_path / "venv"], check=True)
    wheel = dist / f"gpu_rightsizer-{VERSION}-py3-none-any.whl"
    pins: list[str | Path] = ["-c", ROOT / "requirements/rightsizer.lock"]
    command = [uv, "pip", "install", "-q", "--python", tmp_path / "venv/bin/python", *pins, wheel]
    subprocess.run(command, check=True)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)

    assert run("gpu-rightsizer", "--version").stdout == f"gpu-rightsizer {VERSION}\n"
    assert run("gpu-rightsizer", "--help").returncode == 0
    plan = run("gpu-rightsizer", "plan", "--kubeconfig", "/no/such/file")
    assert (plan.returncode, "kubeconfig" in plan.stderr) == (2, True)
    assert "pip install 'gpu-rightsizer[mcp]'" in run("gpu-rightsizer", "mcp").stderr
    assert "pip install 'gpu-rightsizer[exporter]'" in run("gpu-exporter", "--once").stderr


@pytest.fixture
def extras(tmp_path: Path) -> Path:
    """What a release publishes beside packages, image and chart."""
    folder = tmp_path / "extras"
    folder.mkdir()
    make_extras(ROOT, folder, URL)
    return folder


def test_krew_manifest_names_the_archive_by_checksum(extras: Path) -> None:
    """As krew requires: its name, version, address, checksum and executable; nothing is left to fill in."""
    text = (extras / "gpu-rightsizer.yaml").read_text()
    assert "{{" not in text
    manifest = yaml.safe_load(text)
    archive = extras / f"kubectl-gpu_rightsizer-{VERSION}.tar.gz"
    (platform,) = manifest["spec"]["platforms"]
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("gpu-rightsizer", f"v{VERSION}")
    assert platform["uri"] == f"{URL}/releases/download/v{VERSION}/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        modes = {entry.name: entry.mode for entry in packed}
    assert modes[platform["bin"]] == 0o755
    assert modes["kubectl_complete-gpu_rightsizer"] == 0o755
    assert "LICENSE" in modes


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_plugin_runs_and_completes_the_program(extras: Path, tmp_path: Path, shell: str) -> None:
    """By the program on the PATH, else by uv, else it says what to install."""
    with tarfile.open(extras / f"kubectl-gpu_rightsizer-{VERSION}.tar.gz") as packed:
        packed.extractall(tmp_path / "bin", filter="data")
    tools = Path(sys.executable).parent
    path = f"{tmp_path}/bin:{tools}:/usr/bin:/bin"

    def run(name: str, *words: str, path: str = path) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [shutil.which(shell) or shell, tmp_path / "bin" / name, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": path})

    assert run("kubectl-gpu_rightsizer", "--version").stdout == f"gpu-rightsizer {VERSION}\n"
    completed = run("kubectl_complete-gpu_rightsizer", "policy", "ex").stdout.split()
    assert completed == ["explain", ":4"]
    assert {"plan", "apply", ":4"} <= set(run("kubectl_complete-gpu_rightsizer", "").stdout.split())
    missing = run("kubectl-gpu_rightsizer", "plan", path=str(tmp_path))
    assert (missing.returncode, "neither gpu-rightsizer nor uvx" in missing.stderr) == (1, True)
    (tmp_path / "uvx").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "uvx").chmod(0o755)
    by_uv = run("kubectl-gpu_rightsizer", "plan", path=str(tmp_path))
    assert by_uv.stdout == f"--from gpu-rightsizer=={VERSION} gpu-rightsizer plan\n"


def test_published_alerts_and_chart_link_to_runbooks(extras: Path) -> None:
    """Absolute addresses of pages that exist, of this version; the image is the one that this release pushes."""
    rules = [
        rule
        for group in yaml.safe_load((extras / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    alerts = [rule for rule in rules if "alert" in rule]
    assert len(alerts) > 30
    for rule in alerts:
        page = rule["annotations"]["runbook_url"].removeprefix(f"{URL}/blob/v{VERSION}/")
        assert (ROOT / page).is_file()
    values = yaml.safe_load((extras / "chart-values.yaml").read_text())
    assert values["image"]["registry"] == "ghcr.io/some-owner"
    assert values["monitoring"]["rules"]["runbookBaseUrl"] == f"{URL}/blob/v{VERSION}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/helm/values").glob("*.yaml")), ids=lambda path: path.stem
)
def test_values_of_a_cloud_fit_the_chart(path: Path) -> None:
    """They name its preset, and hold what the schema allows."""
    values = yaml.safe_load(path.read_text())
    assert values["platform"] == path.stem
    merged = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    jsonschema.validate(merged, json.loads((CHART / "values.schema.json").read_text()))


def _merged(defaults: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """As Helm does, before it compares them with the schema."""
    both = {
        key: _merged(defaults[key], value) if isinstance(value, dict) and defaults.get(key) else value
        for key, value in values.items()
    }
    return defaults | both


def test_release_workflow_is_pinned_and_has_least_rights() -> None:
    """Actions by commit; no job has more than it needs, and each step that signs has an identity."""
    assert WORKFLOW["permissions"] == {}
    for name, job in WORKFLOW["jobs"].items():
        rights = job["permissions"]
        uses = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one) for one in uses), name
        commands = " ".join(step.get("run", "") for step in job["steps"])
        signs = "cosign sign" in commands or any("pypi-publish" in one for one in uses)
        assert ("id-token" in rights) is signs, name
        assert ("contents" in rights and rights["contents"] == "write") is (name == "page")
