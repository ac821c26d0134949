"""Each program has its own extra, and names it if a library is missing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_WITHOUT = """
import sys
sys.modules[{library!r}] = None
sys.argv[1:] = {flags}
from {module} import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("program", "module", "library", "flags"),
    [
        ("exporter", "exporter.__main__", "pynvml", ["--once"]),
        ("exporter", "exporter.__main__", "h2", ["--help"]),
        ("rightsizer", "rightsizer.__main__", "msgspec", ["--help"]),
        ("rightsizer", "rightsizer.__main__", "pydantic", ["plan"]),
        ("rightsizer", "rightsizer.__main__", "kubernetes", ["undo"]),
    ],
)
def test_program_without_a_library_names_the_extra(
    program: str, module: str, library: str, flags: list[str]
) -> None:
    """One line with the command that installs it, exit code 1, no traceback."""
    code = _WITHOUT.format(library=library, module=module, flags=flags)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    remedy = {
        "exporter": "pip install 'gpu-rightsizer[exporter]'",
        "rightsizer": "pip install gpu-rightsizer, or in a checkout: pip install .",
    }[program]
    assert run.stderr.splitlines() == [f"error: the library {library} is missing; run: {remedy}"]


def test_libraries_of_the_programs_are_separate() -> None:
    """Each lock has what its program or extra needs; the exporter's has no library of the rightsizer alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locks = {"aws": "aws", "dra": "rightsizer", "exporter": "exporter", "history": "rightsizer", "mcp": "dev"}
    locks |= {"messages": "rightsizer"}
    assert locks.keys() == project["optional-dependencies"].keys()
    for lock, requirements in [
        ("rightsizer", project["dependencies"]),
        *((locks[extra], found) for extra, found in project["optional-dependencies"].items()),
    ]:
        locked = _locked(lock)
        for requirement in requirements:
            assert f"\n{requirement.split('>=')[0]}==" in locked
        assert "--hash=sha256:" in locked
        assert ("\nbotocore==" in locked) is (lock == "aws")
    for library in ("kubernetes", "pydantic", "msgspec", "apscheduler"):
        assert f"\n{library}==" not in _locked("exporter")


def _locked(name: str) -> str:
    return "\n" + (ROOT / f"requirements/{name}.lock").read_text()
