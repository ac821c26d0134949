"""Fixtures of all tests: golden files, the flag that rewrites them, and a real Prometheus.

A fixture imports what it starts: collecting the tests of a pure function imports no simulator.
"""

import difflib
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from simulator.cache import CacheError
from simulator.controlplane.programs import (
    CONTROL_PLANE,
    HELM,
    KUSTOMIZE,
    NODE,
    AssetsError,
    MissingProgramsError,
    find,
)
from simulator.realnode.obstacles import obstacle
from tests.compiling import compile_for_workers

if TYPE_CHECKING:
    from simulator.prometheus import Prometheus

Golden = Callable[[str, str], None]


# A slow machine is no failure.
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("default", _PATIENT, max_examples=50)
hypothesis.settings.load_profile("default")
hypothesis.settings.register_profile("ci", _PATIENT)
hypothesis.settings.register_profile("deep", _PATIENT, max_examples=3000)
"""For `make test`, CI and `make check-deep`; --hypothesis-profile chooses one. `MANY` sets its own numbers."""


def pytest_configure(config: pytest.Config) -> None:
    """Let children be interrupted even if pytest runs in the background, which ignores SIGINT; compile once."""
    compile_for_workers(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag of `make golden`."""
    parser.addoption(
        "--golden-update", action="store_true", help="rewrite the golden files instead of comparing"
    )


PROGRAMS = {
    "prometheus": ("prometheus", "promtool"),
    "alertmanager": ("prometheus-alertmanager", "amtool"),
    "driver": ("cc",),
}
"""The programs that tests with a marker start; scripts/install-tools installs them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use golden files, for `make golden`; skip tests that lack a program, with the reason."""
    reasons = _reasons()
    if any(item.get_closest_marker("node") for item in items) and (reason := obstacle()):
        reasons["node"] = reason
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker("golden")
        for marker in {marker.name for marker in item.iter_markers()} & reasons.keys():
            item.add_marker(pytest.mark.skip(reason=reasons[marker]))


def _reasons() -> dict[str, str]:
    """The reason to skip, by marker, for each marker that lacks a program."""
    reasons = {}
    for marker, names in PROGRAMS.items():
        if missing := [program for program in names if shutil.which(program) is None]:
            reasons[marker] = f"not on the path: {', '.join(missing)}; scripts/install-tools installs it"
    built = {
        "controlplane": CONTROL_PLANE,
        "operators": CONTROL_PLANE,
        "node": (*NODE, *CONTROL_PLANE, HELM),
        "helm": (HELM,),
        "kustomize": (KUSTOMIZE,),
    }
    for marker, programs in built.items():
        try:
            find(programs)
        except AssetsError as error:
            raise pytest.UsageError(str(error)) from error
        except (MissingProgramsError, CacheError) as error:
            reasons[marker] = str(error)
    return reasons


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with the file of that name in the `golden` folder beside the test, byte for byte."""
    folder: Path = request.path.parent / "golden"
    update: bool = request.config.getoption("--golden-update")

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            folder.mkdir(exist_ok=True)
            path.write_text(text)
            return
        expected = path.read_text() if path.exists() else ""
        diff = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="", n=1
        )
        assert text == expected, "differs; `make golden` rewrites it, the diff is the review:\n" + "\n".join(
            diff
        )

    return compare


@pytest.fixture
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Prometheus"]:
    """An empty Prometheus without scrape targets; for tests with the marker `prometheus`."""
    from simulator.prometheus import Prometheus  # noqa: PLC0415 - only for tests that start it

    with Prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running
