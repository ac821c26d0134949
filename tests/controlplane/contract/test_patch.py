"""Patches of each type."""

import pytest

from tests.controlplane.contract.server import Api


@pytest.mark.parametrize("kind", ["merge-patch", "strategic-merge-patch"])
def test_null_removes_an_annotation_and_leaves_the_others(api: Api, kind: str) -> None:
    """This is how an undo record is taken away."""
    maps = f"{api.core}/configmaps"
    api.create(maps, {"metadata": {"name": "c", "annotations": {"a": "1", "b": "2"}}})
    reply = api.patch(f"{maps}/c", {"metadata": {"annotations": {"a": None}}}, kind)
    assert (reply.status_code, reply.json()["metadata"]["annotations"]) == (200, {"b": "2"})
