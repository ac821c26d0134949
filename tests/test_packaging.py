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
    assert run.stderr.splitlines() == [
        f"error: the library {library} is missing; run in a checkout: pip install '.[{program}]'"
    ]


def test_extras_of_the_programs_are_separate() -> None:
    """No library is common; each lock has the libraries of one program, history's with it; only aws has botocore."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    locks = {"aws": "aws", "exporter": "exporter", "history": "rightsizer", "rightsizer": "rightsizer"}
    assert locks.keys() == project["optional-dependencies"].keys()
    for extra, lock in locks.items():
        locked = (ROOT / f"requirements/{lock}.lock").read_text()
        for requirement in project["optional-dependencies"][extra]:
            assert f"\n{requirement.split('>=')[0]}==" in f"\n{locked}"
        assert "--hash=sha256:" in locked
        assert ("\nbotocore==" in locked) is (extra == "aws")
