"""Images for a real node, made from files of this machine, as archives that `ctr images import` reads.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import hashlib
import io
import json
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_TYPE = "application/vnd.oci.image"
_PYTHON_PATH = "/opt/packages"
_LEFT_OUT = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tkinter"}


def write_image(
    archive: Path,
    name: str,
    files: Mapping[str, Path],
    *,
    links: Mapping[str, str] | None = None,
    **config: object,
) -> None:
    """Write an image of one layer.

    Args:
        archive: Where to.
        name: With its registry and tag.
        files: Files and folders by their absolute path in the image; links are followed.
        links: Symbolic links by their path in the image.
        config: Such as Entrypoint and Env.
    """
    layer = _layer(files, links or {})
    blobs: dict[str, bytes] = {}
    diff = _blob(blobs, "layer.v1.tar", layer)
    settings = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [diff["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "config": _blob(blobs, "config.v1+json", json.dumps(settings).encode()),
        "layers": [diff],
    }
    described = _blob(blobs, "manifest.v1+json", json.dumps(manifest).encode())
    index = {
        "schemaVersion": 2,
        "manifests": [{**described, "annotations": {"io.containerd.image.name": name}}],
    }
    content = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{digest}": blob for digest, blob in blobs.items()},
    }
    with tarfile.open(archive, "w") as tar:
        for path, data in content.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", dereference=True) as tar:
        for path, source in files.items():
            tar.add(source, path.lstrip("/"), filter=_owned_by_root)
        for path, target in links.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return output.getvalue()


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name.rpartition("/")[2]
    if name in _LEFT_OUT or name.startswith("config-"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _blob(blobs: dict[str, bytes], kind: str, content: bytes) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": f"{_TYPE}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}


def busybox_image(archive: Path, name: str, busybox: Path, applets: Sequence[str]) -> None:
    """Write an image with a statically linked busybox; without a command it sleeps."""
    links = {f"/bin/{applet}": "busybox" for applet in applets}
    write_image(
        archive,
        name,
        {"/bin/busybox": busybox},
        links=links,
        Entrypoint=["/bin/sleep"],
        Cmd=["86400"],
        Env=["PATH=/bin"],
    )


def python_image(archive: Path, name: str, *, packages: Sequence[Path], command: str, module: str) -> None:
    """Write an image with this Python, these packages and modules, and `command`, which runs `module`.

    Python and the libraries that it links stand where they are on this machine.
    """
    executable = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    linked = _linked(executable, *(standard / "lib-dynload").glob("*.so"))
    script = archive.with_suffix(".script")
    script.write_text(f"#!{executable}\nimport runpy\nrunpy.run_module({module!r}, run_name='__main__')\n")
    script.chmod(0o755)
    files = {str(path): path for path in (executable, *linked, standard)}
    files |= {f"{_PYTHON_PATH}/{path.name}": path for path in packages}
    write_image(
        archive,
        name,
        {**files, f"/usr/bin/{command}": script},
        Entrypoint=[command],
        Env=["PATH=/usr/bin", f"PYTHONPATH={_PYTHON_PATH}", "PYTHONUNBUFFERED=1", "HOME=/tmp"],
    )


def _linked(*programs: Path) -> list[Path]:
    """The shared libraries of programs, by the names under which they are asked for."""
    printed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    words = {word for line in printed.splitlines() if line.startswith("\t") for word in line.split()}
    return sorted(Path(word) for word in words if word.startswith("/"))
