"""Decodes the kubelet's PodResources messages from the protobuf wire format. Pure.

Own code, because the protobuf runtime costs 10 MB of memory for four messages. Field numbers: kubelet's
pkg/apis/podresources/v1/api.proto. Unknown fields are skipped, as protobuf demands.
"""

import dataclasses
from collections.abc import Iterator

from exporter.errors import PodResourcesError
from exporter.model import Allocation, Claim, Offer, PodRef

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZE = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS = 64
_MAX_TEXT = 253  # of any name in Kubernetes

_RESPONSE_PODS = 1
_RESPONSE_DEVICES = 1
_POD_NAME, _POD_NAMESPACE, _POD_CONTAINERS = 1, 2, 3
_CONTAINER_NAME, _CONTAINER_DEVICES, _CONTAINER_DYNAMIC = 1, 2, 5
_DEVICES_RESOURCE, _DEVICES_IDS = 1, 2
_CLAIM_NAME, _CLAIM_NAMESPACE, _CLAIM_DEVICES = 2, 3, 4
_CLAIMED = 2, 3, 4, 5  # driver, pool, device, share id


class WireError(PodResourcesError):
    """The bytes are not a protobuf message."""


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < _VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return value, at
        shift += 7
    raise WireError("the kubelet's answer is truncated or not protobuf: a number does not end")


def submessages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a message (strings, messages) as number and content; others are skipped."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            _, at = _varint(data, at)
            continue
        if wire_type == _LENGTH:
            size, at = _varint(data, at)
        elif wire_type in _FIXED_SIZE:
            size = _FIXED_SIZE[wire_type]
        else:
            raise WireError(f"the kubelet's answer is not protobuf: wire type {wire_type} of field {number}")
        if size > len(data) - at:
            raise WireError(f"the kubelet's answer is truncated in field {number}")
        if wire_type == _LENGTH:
            yield number, data[at : at + size]
        at += size


def _text(data: memoryview) -> str:
    """A string for labels and terminals: unprintable characters are replaced, and long strings cut."""
    text = bytes(data).decode(errors="replace")
    if text.isprintable() and len(text) <= _MAX_TEXT:
        return text
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:_MAX_TEXT])


def _last_text(fields: list[tuple[int, memoryview]], number: int) -> str:
    """A string field's value: the last one, as protobuf demands; empty if absent."""
    return next((_text(content) for found, content in reversed(fields) if found == number), "")


def listed_pods(response: bytes) -> frozenset[tuple[str, str]]:
    """Namespace and name of every pod in a ListPodResourcesResponse, also of those without devices."""
    return frozenset(
        (_last_text(fields, _POD_NAMESPACE), _last_text(fields, _POD_NAME)) for fields in _pods(response)
    )


def allocations(response: bytes) -> tuple[Allocation, ...]:
    """Every device of every container in a ListPodResourcesResponse, in the kubelet's order.

    Of each container those of device plugins come first, then claimed ones. Raises WireError: the bytes are not a
    protobuf message.
    """
    return tuple(allocation for fields in _pods(response) for allocation in _of_pod(fields))


def _pods(response: bytes) -> Iterator[list[tuple[int, memoryview]]]:
    for number, pod in submessages(memoryview(response)):
        if number == _RESPONSE_PODS:
            yield list(submessages(pod))


def _of_pod(fields: list[tuple[int, memoryview]]) -> Iterator[Allocation]:
    name, namespace = _last_text(fields, _POD_NAME), _last_text(fields, _POD_NAMESPACE)
    for number, content in fields:
        if number == _POD_CONTAINERS:
            container = list(submessages(content))
            owner = PodRef(namespace, name, _last_text(container, _CONTAINER_NAME))
            yield from _of_container(owner, container)


def _of_container(owner: PodRef, fields: list[tuple[int, memoryview]]) -> Iterator[Allocation]:
    for number, content in fields:
        if number == _CONTAINER_DEVICES:
            for resource, device_id in _devices(content):
                yield Allocation(owner, resource, device_id)
    for number, content in fields:
        if number == _CONTAINER_DYNAMIC:
            for claim in _claims(list(submessages(content))):
                yield Allocation(dataclasses.replace(owner, claim=claim), claim.driver, claim.device)


def _devices(content: memoryview) -> Iterator[tuple[str, str]]:
    """A ContainerDevices message as resource and device id, one for each id."""
    fields = list(submessages(content))
    resource = _last_text(fields, _DEVICES_RESOURCE)
    for number, device_id in fields:
        if number == _DEVICES_IDS:
            yield resource, _text(device_id)


def _claims(fields: list[tuple[int, memoryview]]) -> Iterator[Claim]:
    """A DynamicResource message, one for each device of the claim."""
    name, namespace = _last_text(fields, _CLAIM_NAME), _last_text(fields, _CLAIM_NAMESPACE)
    for number, content in fields:
        if number == _CLAIM_DEVICES:
            of = list(submessages(content))
            driver, pool, device, share_id = (_last_text(of, part) for part in _CLAIMED)
            yield Claim(name, namespace, driver, pool, device, share_id)


def offers(response: bytes) -> tuple[Offer, ...]:
    """Every device id in an AllocatableResourcesResponse. Raises WireError: the bytes are not a protobuf message."""
    return tuple(
        Offer(resource, device_id)
        for number, content in submessages(memoryview(response))
        if number == _RESPONSE_DEVICES
        for resource, device_id in _devices(content)
    )
