"""Addresses of pods and nodes, to find out where a scraped target runs."""

import array
import bisect
import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rightsizer.model.measurements import PodKey


class Address(NamedTuple):
    """The owner of an address; the namespace is empty for a node, or for a pod with the node's address."""

    namespace: str
    node: str


class AddressTable:
    """The addresses of all running pods in 16 bytes each, and the addresses and names of their nodes."""

    def __init__(self) -> None:
        self._names: list[str] = []  # of namespaces and nodes
        self._numbers: dict[str, int] = {}
        self._nodes: dict[str, str] = {}
        # Hashes differ from process to process, so nobody can choose an address with the hash of another.
        self._keys = array.array("q")
        self._namespaces, self._places = array.array("I"), array.array("I")
        self._is_sorted = True

    def add(self, namespace: str, node: str, host: str, addresses: Iterable[str]) -> None:
        """Add a pod, and its node, whose address is `host`."""
        self._nodes[node] = node
        # An address of several nodes, such as a proxy, identifies none.
        if host and self._nodes.setdefault(host, node) != node:
            self._nodes[host] = ""
        for address in addresses:
            if address and address != host:
                self._keys.append(hash(address))
                self._namespaces.append(self._number(namespace))
                self._places.append(self._number(node))
                self._is_sorted = False

    def find(self, address: str) -> Address | None:
        """The owner of an address; None if unknown. The first call sorts, so it is not thread-safe."""
        if address in self._nodes:
            return Address("", self._nodes[address]) if self._nodes[address] else None
        if not self._is_sorted:
            order = sorted(range(len(self._keys)), key=self._keys.__getitem__)
            for name in ("_keys", "_namespaces", "_places"):
                column = getattr(self, name)
                setattr(self, name, array.array(column.typecode, map(column.__getitem__, order)))
            self._is_sorted = True
        place = bisect.bisect_left(self._keys, hash(address))
        if place == len(self._keys) or self._keys[place] != hash(address):
            return None
        return Address(self._names[self._namespaces[place]], self._names[self._places[place]])

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number


@dataclasses.dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where pods run."""

    pods: Mapping[PodKey, str]  # the node of each pod that holds GPUs
    addresses: AddressTable
