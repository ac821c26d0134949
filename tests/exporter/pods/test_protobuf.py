"""The protobuf reader against protobuf itself, and against anything else that may arrive."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Allocation, PodRef
from exporter.pods.protobuf import WireError, allocations
from simulator.nodes.kubelet import messages

names = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)
devices = st.tuples(names, st.lists(names, max_size=3))
containers = st.tuples(names, st.lists(devices, max_size=3))
pods = st.tuples(names, names, st.lists(containers, max_size=3))


def _response(listing: list[Any]) -> bytes:
    of = messages()
    response = of.ListPodResourcesResponse(
        pod_resources=[
            of.PodResources(
                name=name,
                namespace=namespace,
                containers=[
                    of.ContainerResources(
                        name=container,
                        devices=[
                            of.ContainerDevices(resource_name=resource, device_ids=ids)
                            for resource, ids in groups
                        ],
                        cpu_ids=[1, 2**40],
                        memory=[of.ContainerMemory(memory_type="memory", size=2**63)],
                    )
                    for container, groups in found
                ],
            )
            for name, namespace, found in listing
        ]
    )
    encoded: bytes = response.SerializeToString()
    return encoded


@given(st.lists(pods, max_size=4))
def test_protobuf_messages_of_google_are_decoded(listing: list[Any]) -> None:
    """Whatever pods there are, the reader finds what Google's own implementation wrote."""
    expected = tuple(
        Allocation(PodRef(namespace, name, container), resource, device_id)
        for name, namespace, found in listing
        for container, groups in found
        for resource, ids in groups
        for device_id in ids
    )
    assert allocations(_response(listing)) == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """Bytes that are no message raise the one declared error, never another."""
    with contextlib.suppress(WireError):
        allocations(data)


@given(st.lists(pods, min_size=1, max_size=3), st.data())
def test_truncated_message_adds_nothing(listing: list[Any], data: st.DataObject) -> None:
    """A message that was cut off is refused or yields a beginning of what was sent: nothing that was not there."""
    whole = _response(listing)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    with contextlib.suppress(WireError):
        found = allocations(cut)
        assert found == allocations(whole)[: len(found)]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a", id="no-length"),
        pytest.param(b"\x0a\x05abc", id="short"),
        pytest.param(b"\x0b", id="group"),
        pytest.param(b"\xff" * 11, id="endless-number"),
        pytest.param(b"\x09\x00", id="short-fixed64"),
    ],
)
def test_broken_messages_are_refused(data: bytes) -> None:
    """Each way to break a message is noticed."""
    with pytest.raises(WireError, match="the kubelet's answer"):
        allocations(data)


def test_invalid_utf8_in_names_is_replaced() -> None:
    """Bytes that are not UTF-8 become replacement characters, not a failure."""
    container = b"\x0a\x01c\x12\x08\x0a\x01r\x12\x03d\xf8!"
    pod = b"\x0a\x01p\x12\x01n\x1a" + bytes([len(container)]) + container
    assert allocations(b"\x0a" + bytes([len(pod)]) + pod) == (
        Allocation(PodRef("n", "p", "c"), "r", "d\ufffd!"),
    )
