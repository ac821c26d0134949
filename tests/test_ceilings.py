"""Ceilings: what is above one is named, and a ceiling is lowered by a command, but never raised."""

from pathlib import Path

import pytest

from scripts.ceilings import ROOT, TABLE, above, main, size_of, surface

_CODE = "class A:\n    class B:\n        pass\n"


def _project(root: Path, lines: int, files: int) -> Path:
    (root / "scripts").mkdir()
    (root / TABLE).write_text(f'"package" = {{ lines = {lines}, files = {files} }}\n')
    (root / "package/inner").mkdir(parents=True)
    for path in ("one.py", "inner/two.py"):
        (root / "package" / path).write_text(_CODE)
    return root


def test_size_counts_all_python_below_a_folder(tmp_path: Path) -> None:
    """Inner folders and inner classes as well."""
    _project(tmp_path, 0, 0)
    assert size_of(tmp_path / "package") == {"lines": 6, "files": 2, "classes": 4}


def test_package_above_a_ceiling_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what there is, and what may be."""
    monkeypatch.setattr("sys.argv", ["ceilings"])
    assert main(_project(tmp_path, lines=5, files=2)) == 1
    assert capsys.readouterr().out == "package: 6 lines, ceiling 5\n"


def test_ceiling_is_lowered_and_never_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raising one is a line in a commit of somebody."""
    root = _project(tmp_path, lines=5, files=9)
    monkeypatch.setattr("sys.argv", ["ceilings", "--lower"])
    assert main(root) == 0
    assert '"package" = { lines = 5, files = 2 }' in (root / TABLE).read_text()


def test_surface_counts_commands_policy_fields_and_stores() -> None:
    """Those that --help, the schema and docs/state.md list."""
    found = surface()
    assert found["commands"] > 10
    assert found["policy-fields"] > 100
    assert found["stores"] > 3
    assert above({"surface": found}, {"surface": {"commands": 1}}) == [
        f"surface: {found['commands']} commands, ceiling 1"
    ]
    assert (ROOT / TABLE).exists()
