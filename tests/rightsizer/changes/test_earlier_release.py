"""Objects and ConfigMaps that a release with a history on each object wrote are listed, undone and migrated."""

import datetime
import json
import pathlib
import re
from typing import Any

import pytest

from tests.rightsizer.execute.test_reconcile import AT_ONCE
from tests.rightsizer.world import World, created

pytestmark = pytest.mark.prometheus

_WRITTEN = pathlib.Path(__file__).with_name("earlier_release.json").read_text()
"""Five Deployments and the memory: one stopped twice, others restored, rolled back, grown again, made smaller twice."""
_LAST = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
_HISTORY, _UNDO = "gpu-rightsizer.io/history", "gpu-rightsizer.io/undo"


@pytest.fixture
def earlier(world: World) -> World:
    """A cluster with these objects, of which the last change was an hour ago."""
    world.team = "team"  # the keys of the memory are made of it
    later = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1) - _LAST

    def shifted(found: re.Match[str]) -> str:
        return f"{datetime.datetime.fromisoformat(found[0]) + later:%Y-%m-%dT%H:%M:%SZ}"

    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+(Z|\+00:00)", shifted, _WRITTEN)
    for item in json.loads(text)["items"]:
        name = item["metadata"]["name"]
        if item["kind"] == "ConfigMap":
            world.api.create(item)
            continue
        world.add("Deployment", world.team, name, {"replicas": max(item["spec"]["replicas"], 1)})
        notes = {"metadata": {"annotations": item["metadata"]["annotations"]}}
        world.api.patch("Deployment", world.team, name, {**notes, "spec": item["spec"]})
    world.api.settle()
    return world


def _history(world: World) -> list[tuple[str, str, str | None]]:
    items = json.loads(world.run("history", "-o", "json").out)["items"]
    return sorted((one["name"], one["run"], one["end"]) for one in items)


def _memory(world: World) -> dict[tuple[str, str], str | None]:
    found = world.api.list("ConfigMap", "gpu-rightsizer")
    texts = [text for one in found if "memory" in one["metadata"]["name"] for text in one["data"].values()]
    return {
        (kept["owner"]["name"], one["run"]): one.get("end")
        for kept in map(json.loads, texts)
        for one in kept["changes"]
    }


def _annotations(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = created(world.api, "Deployment", world.team, name)["metadata"]["annotations"]
    return found


def test_earlier_release_changes_are_listed_with_their_ends(earlier: World) -> None:
    """The ConfigMaps have the changes, and the objects how they ended."""
    assert _history(earlier) == [
        ("grown", "r1", "scale-up"),
        ("idle", "r1", "undone"),
        ("idle", "r2", None),
        ("rolled-back", "r1", "rollback"),
        ("smaller", "r1", None),
        ("smaller", "r2", None),
        ("undone", "r1", "undone"),
    ]
    text = " ".join(earlier.run("history").out.split())
    assert "rule all, idle: no activity for 9d; spec.replicas: 4 → 0" in text


def test_earlier_release_changes_are_undone_and_end_in_the_memory(earlier: World) -> None:
    """Two that are merged in one record end together; what had ended before stays as it was."""
    assert earlier.run("undo", "--all", "--yes").code == 0
    replicas = {
        name: created(earlier.api, "Deployment", earlier.team, name)["spec"]["replicas"]
        for name in ("idle", "smaller")
    }
    assert replicas == {"idle": 4, "smaller": 4}
    assert _UNDO not in _annotations(earlier, "idle")
    kept = _memory(earlier)
    assert [kept[key] for key in (("smaller", "r1"), ("smaller", "r2"), ("idle", "r2"))] == ["undone"] * 3
    assert ("idle", "r1", "undone") in _history(earlier)


def test_earlier_release_ends_hold_off_and_move_to_the_memory(earlier: World) -> None:
    """A rollback by the earlier release delays the next change; that change removes the history from the object."""
    held = AT_ONCE.replace("cooldown: 1s", "cooldown: 72h")
    item = earlier.run("plan", "-o", "json", policy=held).items["rolled-back"]
    assert any("it was rolled back at" in one["message"] for one in item["blockers"]), item
    outcomes = earlier.run("apply", "--yes", "-o", "json", "--verify-for", "0", policy=AT_ONCE).items
    assert outcomes["rolled-back"]["result"] == "done", outcomes
    assert _HISTORY not in _annotations(earlier, "rolled-back")
    kept = _memory(earlier)
    ends = [kept[key] for key in sorted(kept) if key[0] == "rolled-back"]
    assert sorted(map(str, ends)) == ["None", "rollback"]
