"""Reads a Dockerfile and carries out what it says without a builder: COPY from the context, RUN in a shell.

Paths of the image are build arguments where that is wanted, so that the instructions themselves stay as they are. It
knows the instructions that ours has; any other is an error, so that none is passed over.
"""

import dataclasses
import fnmatch
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

_NAMES_ONLY = {"LABEL", "ENV", "USER", "ENTRYPOINT"}
"""What leaves the file system as it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its lines joined."""

    word: str
    text: str


def stages_of(text: str) -> list[list[Instruction]]:
    """The instructions of each stage, without its FROM; what stands before the first FROM is left out."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    stages: list[list[Instruction]] = []
    for line in filter(None, joined.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        elif stages:
            stages[-1].append(Instruction(word, rest.strip()))
    return stages


def ignored(patterns: Sequence[str], path: PurePosixPath) -> bool:
    """Whether .dockerignore keeps a file back: the last pattern that matches it or a folder above it decides."""
    found = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!").removeprefix("**/")
        anywhere = pattern.startswith("**/")
        candidates = (
            path.parts if anywhere else [str(above) for above in (path, *path.parents) if str(above) != "."]
        )
        if any(fnmatch.fnmatchcase(candidate, wanted) for candidate in candidates):
            found = not pattern.startswith("!")
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Rehearsal:
    """A stage's instructions, carried out on this machine.

    Attributes:
        context: The folder that a builder would be given.
        root: Stands for `/` to WORKDIR and COPY.
        arguments: Build arguments.
        environment: What a base image would have set, such as PATH.
    """

    context: Path
    root: Path
    arguments: Mapping[str, str]
    environment: Mapping[str, str]

    def carry_out(self, stage: Sequence[Instruction]) -> None:
        """Do all of a stage.

        Raises:
            CalledProcessError: A RUN instruction ended with another status than 0; with what it printed.
            FileNotFoundError: COPY names what is not there, or what .dockerignore keeps back.
        """
        environment, place = dict(self.environment), self.root
        for instruction in stage:
            match instruction.word:
                case "ARG":
                    name, has_default, default = instruction.text.partition("=")
                    if name in self.arguments or has_default:
                        environment[name] = self.arguments.get(name, default.strip('"'))
                case "WORKDIR":
                    place = self.root / instruction.text.lstrip("/")
                    place.mkdir(parents=True, exist_ok=True)
                case "COPY" if not instruction.text.startswith("--from="):
                    *sources, target = instruction.text.split()
                    self._copy(sources, place / target, is_folder=target.endswith("/"))
                case "RUN":
                    _run(instruction.text, place, environment)
                case word:
                    assert word in {"COPY", *_NAMES_ONLY}, f"{word}: not known"

    def _copy(self, sources: Sequence[str], target: Path, *, is_folder: bool) -> None:
        assert is_folder
        for source in sources:
            whole = self.context / source
            found = list(self._sent(whole))
            if not found:
                raise FileNotFoundError(f"COPY {source}: not in the context, or kept back by .dockerignore")
            for path in found:
                to = target / (path.relative_to(whole) if whole.is_dir() else path.name)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, to)

    def _sent(self, whole: Path) -> Iterator[Path]:
        lines = (self.context / ".dockerignore").read_text().splitlines()
        patterns = [line for line in lines if line and not line.startswith("#")]
        for path in sorted(whole.rglob("*")) if whole.is_dir() else [whole]:
            relative = PurePosixPath(path.relative_to(self.context))
            if path.is_file() and not ignored(patterns, relative):
                yield path


def _run(command: str, place: Path, environment: Mapping[str, str]) -> None:
    run = subprocess.run(
        ["/bin/sh", "-c", command], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise AssertionError(f"RUN {command}\nended with {run.returncode}\n{run.stdout}{run.stderr}")


def base_environment(python: Path, folder: Path) -> dict[str, str]:
    """What a Python image sets: `python` on the path. How packages are fetched is this machine's business."""
    folder.mkdir()
    shim = folder / "python"
    shim.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    shim.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in {"HOME", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
        or name.lower().endswith("_proxy")
        or name.startswith("PIP_")
    }
    return {**kept, "PATH": f"{folder}:/usr/bin:/bin"}
