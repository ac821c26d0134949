"""The examples as their index tells of them: files, what is in them, and what gpu-rightsizer is said to say."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
INDEX = EXAMPLES / "README.md"
POLICIES = {"policy.yaml", "policy-by-class.yaml", "gitops/policy.yaml"}
"""Files for gpu-rightsizer itself."""
NO_OBJECTS = {*POLICIES, "scheduler-extender/kube-scheduler.yaml", "sharing/scheduler-extender.yaml"}
"""Files of programs, which no API server takes."""

_LINK = re.compile(r"^\| \[(?P<path>[^]]+)\]\((?P=path)\) \|", re.MULTILINE)
_ROW = re.compile(r"^\| `(?P<ref>[^`/]+/[^`/]+/[^`/]+)` \|(?P<rest>.*)\|$", re.MULTILINE)

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What the index says of one workload that has done nothing for more than a day.

    Attributes:
        gpus: Devices that it holds: GPUs, instances or shares, one each.
        whole: The same in whole GPUs.
        action: What is proposed; empty where nothing is.
    """

    name: str
    kind: str
    priority_class: str
    gpus: int
    whole: str
    verdict: str
    action: str


def files() -> list[str]:
    """All YAML files, by their paths below the folder."""
    return sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.yaml"))


def indexed() -> list[str]:
    """The files that the index has a row for."""
    return sorted(match["path"] for match in _LINK.finditer(INDEX.read_text()))


def objects(file: str) -> list[Object]:
    """The documents of a file."""
    text = (EXAMPLES / file).read_text()
    return [found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found]


def all_objects() -> Iterator[tuple[str, Object]]:
    """Everything that an API server takes, the classes first."""
    for file in sorted(set(files()) - NO_OBJECTS, key=lambda file: (file != "priority-classes.yaml", file)):
        for found in objects(file):
            yield file, found


def said() -> Mapping[str, Said]:
    """The index's rows about workloads, by namespace/kind/name."""
    rows = {}
    for match in _ROW.finditer(INDEX.read_text()):
        _, kind, name = match["ref"].split("/")
        cells = [cell.strip().strip("`") for cell in match["rest"].split("|")]
        priority_class, gpus, whole, verdict, action = cells
        rows[match["ref"]] = Said(name, kind, priority_class, int(gpus), whole, verdict, action)
    return rows
