"""A release: sets its version everywhere, checks its tag, and makes what is published beside wheel, sdist and image.

python -m scripts.release set 0.2.0          the version in every file that names it; then commit, and tag v0.2.0
python -m scripts.release check v0.2.0       that a tag is the version of every file (the release workflow runs it)
python -m scripts.release extras DIR URL     kubectl plugin, krew manifest, alerts and the chart's values, into DIR
"""

import datetime
import gzip
import hashlib
import io
import re
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = (
    "pyproject.toml",
    "exporter/__init__.py",
    "deploy/Dockerfile",
    "deploy/helm/gpu-rightsizer/Chart.yaml",
    "deploy/helm/gpu-rightsizer/README.md",
    "deploy/README.md",
    "deploy/kustomize/**/*.yaml",
    "docs/install.md",
    "tests/deploy/test_kustomize.py",
    "tests/exporter/render/golden/*.prom",
)
"""Files that name the version; all of its kind, so that none keeps an older one."""
_VERSION = re.compile(r"\d+\.\d+\.\d+")
KREW = ROOT / "deploy" / "krew"
PLUGIN = ("kubectl-gpu_rightsizer", "kubectl_complete-gpu_rightsizer")


class ReleaseError(Exception):
    """What keeps a release from being made."""


def version_of(root: Path) -> str:
    """The version that pyproject.toml names."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return version


def set_version(root: Path, new: str, day: datetime.date) -> list[str]:
    """Write a version into every file; what `## Unreleased` of the changelog lists becomes that version's."""
    if not _VERSION.fullmatch(new):
        message = f'version "{new}": must be like 0.2.0'
        raise ReleaseError(message)
    old, changed = _named(version_of(root)), []
    for path in sorted({path for place in PLACES for path in root.glob(place)}):
        text = path.read_text()
        if written := old.sub(new, text):
            path.write_text(written)
            changed += [str(path.relative_to(root))] if written != text else []
    log = root / "CHANGELOG.md"
    log.write_text(log.read_text().replace("\n## Unreleased\n", f"\n## Unreleased\n\n## {new} - {day}\n", 1))
    return [*changed, "CHANGELOG.md"]


def problems_of(root: Path, tag: str) -> list[str]:
    """Why this tag cannot be released."""
    version = version_of(root)
    if tag != f"v{version}":
        return [
            f"tag {tag}: pyproject.toml has version {version}; run: python -m scripts.release set {tag[1:]}"
        ]
    named = _named(version)
    found = [
        f"{path.relative_to(root)}: does not name version {version}"
        for place in PLACES
        for path in sorted(root.glob(place))
        if "**" not in place and not named.search(path.read_text())
    ]
    if f"\n## {version} - " not in (root / "CHANGELOG.md").read_text():
        found.append(f"CHANGELOG.md: has no section {version}")
    return found


def _named(version: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.]*\d)")


def make_extras(root: Path, folder: Path, repository: str) -> None:
    """Write the kubectl plugin's archive and krew manifest, alerts with absolute links, and the chart's values."""
    version = version_of(root)
    archive = _plugin(root, version)
    name = f"kubectl-gpu_rightsizer-{version}.tar.gz"
    (folder / name).write_bytes(archive)
    manifest = (root / "deploy/krew/gpu-rightsizer.yaml").read_text()
    for field, text in {
        "VERSION": version,
        "REPOSITORY": repository,
        "ARCHIVE": name,
        "SHA256": hashlib.sha256(archive).hexdigest(),
    }.items():
        manifest = manifest.replace(f"{{{{{field}}}}}", text)
    (folder / "gpu-rightsizer.yaml").write_text(manifest)
    pages = f"{repository}/blob/v{version}"
    alerts = (root / "deploy/prometheus/alerts.yaml").read_text()
    (folder / "alerts.yaml").write_text(alerts.replace(" runbook: docs/", f" runbook_url: {pages}/docs/"))
    values = root / "deploy/helm/gpu-rightsizer/values.yaml"
    text = values.read_text()
    owner = re.sub(r"^https?://[^/]+/([^/]+)/.*$", r"\1", repository).lower()
    for empty, filled in {
        '\n  registry: ""\n': f"\n  registry: ghcr.io/{owner}\n",
        '\n    runbookBaseUrl: ""\n': f"\n    runbookBaseUrl: {pages}\n",
    }.items():
        if text.count(empty) != 1:
            message = f"{values.name}: {empty.strip()} must be there once"
            raise ReleaseError(message)
        text = text.replace(empty, filled)
    (folder / "chart-values.yaml").write_text(text)


def _plugin(root: Path, version: str) -> bytes:
    """The same bytes for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in (*PLUGIN, "LICENSE"):
            path = root / "LICENSE" if name == "LICENSE" else root / "deploy/krew" / name
            data = path.read_text().replace("{{VERSION}}", version).encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644 if name == "LICENSE" else 0o755
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def main(arguments: Sequence[str]) -> int:
    """Run one of the three; its exit code."""
    try:
        match arguments:
            case ["set", version]:
                today = datetime.datetime.now(datetime.UTC).date()
                print("\n".join(set_version(ROOT, version, today)))
            case ["check", tag]:
                if found := problems_of(ROOT, tag):
                    raise ReleaseError("\n".join(found))  # noqa: TRY301 - reported as any other
            case ["extras", folder, repository] if repository.startswith("https://"):
                make_extras(ROOT, Path(folder), repository.rstrip("/"))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
