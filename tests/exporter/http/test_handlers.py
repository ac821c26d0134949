"""Concurrent scrapes: rendered once, shared, bounded."""

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from exporter.errors import RequestError
from exporter.http.handlers import MAX_SCRAPES, SingleFlight
from exporter.render.textformat import Format
from tests.exporter.rig import PATIENCE_S, eventually


class Press:
    """Counts its renderings, and waits before each until `may` is set."""

    def __init__(self) -> None:
        self.begun = 0
        self.may = threading.Event()
        self.fails = False

    def make(self, form: Format) -> bytes:
        """The number of the rendering and its format."""
        self.begun += 1
        number = self.begun
        assert self.may.wait(PATIENCE_S)
        if self.fails:
            raise RuntimeError("out of ink")
        return f"{number} {form.name}".encode()


@pytest.fixture
def press() -> Press:
    """A press without renderings."""
    return Press()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Clients."""
    with ThreadPoolExecutor(MAX_SCRAPES + 4) as threads:
        yield threads


def _ask(
    pool: ThreadPoolExecutor,
    bodies: SingleFlight,
    count: int,
    form: Format = Format.TEXT,
    *,
    zipped: bool = False,
) -> list[Future[bytes]]:
    return [pool.submit(bodies.get, form, zipped=zipped, timeout_s=PATIENCE_S) for _ in range(count)]


def _slots_taken(bodies: SingleFlight) -> int:
    return MAX_SCRAPES - bodies._slots._value  # noqa: SLF001 - that all have come shows nowhere else


def test_singleflight_shares_one_rendering(press: Press, pool: ThreadPoolExecutor) -> None:
    """One rendering serves all requests that arrive during it; a later request gets a new one."""
    bodies = SingleFlight(press.make)
    asked = _ask(pool, bodies, 5)
    eventually(lambda: _slots_taken(bodies) == 5)
    press.may.set()
    assert {answer.result() for answer in asked} == {b"1 TEXT"}
    assert bodies.get(Format.TEXT, zipped=False, timeout_s=1) == b"2 TEXT"


def test_singleflight_renders_once_for_gzip_and_plain(press: Press, pool: ThreadPoolExecutor) -> None:
    """Each format is rendered once for all codings."""
    bodies = SingleFlight(press.make)
    plain, zipped = _ask(pool, bodies, 2), _ask(pool, bodies, 2, zipped=True)
    other = _ask(pool, bodies, 1, Format.OPENMETRICS)
    eventually(lambda: _slots_taken(bodies) == 5 and press.begun == 2)
    press.may.set()
    found = {answer.result() for answer in plain} | {gzip.decompress(answer.result()) for answer in zipped}
    assert len(found) == 1
    assert other[0].result().endswith(b" OPENMETRICS")
    assert press.begun == 2


def test_singleflight_above_its_limit_refuses(press: Press, pool: ThreadPoolExecutor) -> None:
    """Above the limit, scrapes are refused at once; below it, they are answered again."""
    bodies = SingleFlight(press.make)
    asked = _ask(pool, bodies, MAX_SCRAPES)
    eventually(lambda: _slots_taken(bodies) == MAX_SCRAPES)
    with pytest.raises(RequestError) as refused:
        bodies.get(Format.TEXT, zipped=False, timeout_s=1)
    assert refused.value.status == 503
    press.may.set()
    assert len({answer.result() for answer in asked}) == 1
    assert bodies.get(Format.TEXT, zipped=False, timeout_s=1)


def test_singleflight_waiting_too_long_times_out(press: Press, pool: ThreadPoolExecutor) -> None:
    """A request that waits for another's rendering times out; the rendering continues."""
    bodies = SingleFlight(press.make)
    (first,) = _ask(pool, bodies, 1)
    eventually(lambda: press.begun == 1)
    with pytest.raises(TimeoutError):
        bodies.get(Format.TEXT, zipped=False, timeout_s=0.01)
    press.may.set()
    assert first.result() == b"1 TEXT"


def test_singleflight_failure_reaches_only_waiting_requests(press: Press, pool: ThreadPoolExecutor) -> None:
    """A failure reaches all requests that share the rendering, and is not cached."""
    bodies = SingleFlight(press.make)
    press.fails = True
    asked = _ask(pool, bodies, 3)
    eventually(lambda: _slots_taken(bodies) == 3)
    press.may.set()
    assert {str(answer.exception()) for answer in asked} == {"out of ink"}
    press.fails = False
    assert bodies.get(Format.TEXT, zipped=False, timeout_s=1) == b"2 TEXT"
