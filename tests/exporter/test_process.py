"""What the exporter keeps of the memory that it has freed."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, eventually, h100

pytestmark = [
    pytest.mark.driver,
    pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="other C libraries keep little"),
]

_MAPPING = re.compile(r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<access>\S+) .*")
_HEAP_BYTES = 64 * 2**20
"""What glibc reserves for a heap beside the first, which begins at a multiple of that (malloc/arena.c)."""


@pytest.fixture
def exporter(make_node: MakeNode, tmp_path: Path) -> Iterator[Exporter]:
    """A running exporter of several GPUs, each of which has a thread of its own; its start compiles all of it."""
    compiling = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "empty")}
    with make_node(h100(4)).exporting(variables=compiling) as running:
        yield running


def further_heaps(exporter: Exporter) -> list[str]:
    """Where heaps beside the first begin: in use up to some point, and reserved from there."""
    lines = Path(f"/proc/{exporter.process.pid}/maps").read_text().splitlines()
    found = [match for line in lines if (match := _MAPPING.fullmatch(line))]
    reserved = {match["start"]: int(match["end"], 16) for match in found if match["access"] == "---p"}
    return [
        match["start"]
        for match in found
        if match["access"] == "rw-p"
        and (start := int(match["start"], 16)) % _HEAP_BYTES == 0
        and reserved.get(match["end"], 0) >= start + _HEAP_BYTES
    ]


def test_threads_share_one_heap(exporter: Exporter) -> None:
    """However many threads read GPUs and answer scrapes, there is one heap: each further one would grow to its peak."""
    with ThreadPoolExecutor(4) as clients:
        assert {status for status, _ in clients.map(exporter.get, ["/metrics"] * 40)} == {200}
    assert further_heaps(exporter) == []


def heap_kib(exporter: Exporter) -> tuple[int, int]:
    """The size of the heap, and what of it is resident."""
    text = Path(f"/proc/{exporter.process.pid}/smaps").read_text()
    found = re.search(r"\[heap\]\nSize: +(\d+) kB\n(?:.*\n)*?Rss: +(\d+) kB", text)
    assert found is not None
    return int(found[1]), int(found[2])


def test_memory_of_the_start_is_returned(exporter: Exporter) -> None:
    """Soon after there is something to scrape, a good part of the heap is not resident any more."""

    def is_small() -> bool:
        size, resident = heap_kib(exporter)
        return resident < 0.75 * size

    eventually(is_small)
