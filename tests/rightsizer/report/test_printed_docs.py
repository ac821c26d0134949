"""Pages of docs/ show what the program prints: of each finding and action, in a cluster in which each of them occurs.

What is printed stands between `<!-- printed: COMMAND WORKLOAD -->` and `<!-- end -->`; `make golden` rewrites it.
Times, and names that are made up anew each time, are always the same there.
"""

import json
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml

from rightsizer.model import Action, FindingName
from simulator.prometheus import Prometheus
from tests.conftest import Golden
from tests.rightsizer.test_scenarios import age, dated, give
from tests.rightsizer.world import World

HERE = pathlib.Path(__file__).parents[1]
DOCS = HERE.parents[1] / "docs"
PAGES = ("concepts.md", "rightsizer.md", "findings.md", "for-researchers.md")
EXAMPLES: dict[str, Any] = yaml.load(
    dated((HERE / "data" / "one-of-each.yaml").read_text()), Loader=yaml.CSafeLoader
)
_PART = re.compile(r"(<!-- printed: ([a-z]+) ([A-Za-z/-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ALWAYS_NEW = {
    r"\b20\d\d-\d\d-\d\d(\s+)\d\d:\d\d\b": r"2026-11-22\g<1>12:00",
    r"\b(given at\s+2026-11-22\s+)12:00\b": r"\g<1>08:00",
    r"\buntil=20\d\d-\d\d-\d\d\b": "until=2026-11-25",
    r"\bGPU-[0-9a-f]{8}-\d{4}\b": "GPU-5c2e7f10-0001",
    r"\b(\d+[dh]) \d+[ms]\b": r"\1 30m",
    r"\bcover 5\d%": "cover 52%",
    r"\bcoverage 95%": "coverage 100%",  # a sample on the very edge of one of twenty slots
    r"(?<=debug-shell)-[0-9a-f]{8}\b": "-1a2b3c4d",
    r"\bset it to 2\dm": "set it to 23m",
    r"\b19\.\d GPU-hours": "19.5 GPU-hours",
    r"\bholds only \d\d samples": "holds only 13 samples",
    r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-11-22T12:00:00Z",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "7d3f2a10-5b1c-4e2f-9a6d-0c8e4b7f1a35",
    r'(?<="resourceVersion": ")\d+': "4711",
    r"\b20\d{6}-\d{6}-[0-9a-f]{6}\b": "20261122-120000-8a4c10",
}
_HEAD = re.compile(r"(?m)^(?=[a-z]+ .*\b[a-z-]+/[A-Z][A-Za-z]+/[a-z-]+|[a-z-]+/[A-Z])")


@pytest.fixture
def printed(tmp_path: pathlib.Path, prometheus: Prometheus) -> Mapping[str, Callable[[str], str]]:
    """What each command prints about a workload, by the command's name."""
    with World(tmp_path, prometheus) as world:
        give(world, EXAMPLES["given"], "batch")
        policy = EXAMPLES["policy"]
        plan = world.run("plan", "-o", "explain", policy=policy).out
        applied = world.run("apply", "--yes", "--verify-for", "0", policy=policy).out
        back = world.run("undo", "--all", "--yes").out
        events = {
            f"{one['involvedObject']['namespace']}/{one['involvedObject']['kind']}/{one['involvedObject']['name']}": one
            for one in world.api.list("Event", None)
            if one["reason"] not in {"Restored", "Confirmed"}
        }
    outcomes = applied[applied.index("Applying this plan") :]
    decision = _decision(tmp_path, prometheus)
    return {
        "decision": decision.__getitem__,
        "plan": lambda name: _about(name, plan),
        "apply": lambda name: _about(name, outcomes),
        "undo": lambda name: _about(name, back[back.rindex("\n\n", 0, back.rindex("done ")) :]),
        "event": lambda name: _told(events[name]),
        "sum": lambda _: outcomes.split("\n\n")[0].split("\ndone ")[0],
    }


def _decision(folder: pathlib.Path, prometheus: Prometheus) -> Mapping[str, str]:
    """Each step of one decision: a Deployment is found idle, announced, stopped and restored."""
    ref = "vision/Deployment/labeler"
    policy = EXAMPLES["decision"]["policy"]
    with World(folder, prometheus) as world:
        give(world, EXAMPLES["decision"]["given"], "vision")
        names = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
        queries = [f'max_over_time({name}{{exported_namespace="vision"}}[1d])' for name in names]
        series = {query: world.prometheus.query(query) for query in queries}
        noticed = world.run("apply", "--yes", policy=policy).out
        blocked = world.run("plan", "-o", "explain", policy=policy).out
        age(world, "Deployment", "vision", "labeler", 5)
        world.api.requests.clear()
        applied = world.run("apply", "--yes", "--verify-for", "0", policy=policy).out
        (patch,) = [one for one in world.api.requests.mutating() if one.path.endswith("/labeler")]
        (event,) = [one for one in world.api.list("Event", "vision") if one["reason"] == "ScaledToZero"]
        undone = world.run("undo", ref, "--yes").out
    return {
        "series": "\n".join(
            f"{query} => {one['value'][1]}" for query, found in series.items() for one in found
        ),
        "plan": _about(ref, blocked),
        "notice": _about(ref, noticed[noticed.index("Applying this plan") :]),
        "patch": yaml.safe_dump(json.loads(_same(json.dumps(patch.json))), width=100).rstrip(),
        "apply": _about(ref, applied[applied.index("Applying this plan") :]),
        "event": _told(event),
        "undo": undone[undone.index("done ") :].split("\n\n")[0],
    }


def _about(name: str, text: str) -> str:
    """The block of lines about a workload."""
    (block,) = [one for one in _HEAD.split(text) if name in one.splitlines()[0]]
    return block.split("\n\n")[0].rstrip()


def _told(event: Mapping[str, Any]) -> str:
    return "\n".join(textwrap.wrap(_same(f"{event['type']}  {event['reason']}  {event['message']}"), 100))


def _same(text: str) -> str:
    for pattern, always in _ALWAYS_NEW.items():
        text = re.sub(pattern, always, text)
    return text


@pytest.mark.slow
@pytest.mark.prometheus
def test_docs_pages_match_current_output(printed: Mapping[str, Callable[[str], str]], golden: Golden) -> None:
    """Each part is what the program prints today about that workload."""

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}\n```\n{_same(printed[found[2]](found[3]))}\n```\n\n{found[4]}"

    for page in PAGES:
        path = DOCS / page
        golden(str(path), _PART.sub(fill, path.read_text()))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    return ((found[2], found[3]) for found in _PART.finditer(text))


@pytest.mark.parametrize("name", FindingName)
def test_docs_every_finding_has_example(name: FindingName) -> None:
    """A heading, and what the plan prints."""
    text = (DOCS / "findings.md").read_text()
    assert re.search(rf"^### {name}$", text, re.MULTILINE)
    assert ("plan", EXAMPLES["findings"][name]) in _parts(text)


@pytest.mark.parametrize("name", Action)
def test_docs_every_action_has_example(name: Action) -> None:
    """A heading, and what carrying it out prints."""
    text = (DOCS / "findings.md").read_text()
    assert re.search(rf"^### {name}$", text, re.MULTILINE)
    assert ("apply", EXAMPLES["actions"][name]) in _parts(text)
