"""What all tests share: golden files and the flag that rewrites them."""

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag of `make golden`."""
    parser.addoption(
        "--golden-update", action="store_true", help="rewrite the golden files instead of comparing"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what compares with a golden file, so that `make golden` runs just that."""
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker("golden")


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
