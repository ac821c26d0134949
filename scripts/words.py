"""Holds docstrings and names to words: docstrings begin with a noun or verb, and no variable is called one or each.

`make check` runs it on the folders that are clean; a folder is added when it is. "Whether" begins those of predicates.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLEAN = (
    "exporter",
    "rightsizer/changes",
    "rightsizer/doctor",
    "rightsizer/evidence",
    "rightsizer/execute",
    "rightsizer/findings",
    "rightsizer/guardrails",
    "rightsizer/kinds",
    "rightsizer/kube",
    "rightsizer/model",
    "rightsizer/planning",
    "rightsizer/policy",
    "rightsizer/prometheus",
    "rightsizer/report",
    "rightsizer_extender",
)
_RIDDLE = re.compile(
    r"\s*(After|As|By|For|From|How|If|In|It|Its|Nobody|Nothing|Of|Such|That|Their|These|They|This|Those|What|Whatever"
    r"|When|Where|Which|Who|Whose|With)\b"
)
_NAMELESS = frozenset({"one", "each", "here"})


def problems(path: Path) -> Iterator[str]:
    """Sentences about a module's docstrings, those of fields and constants too, and about its variables."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if riddle := _RIDDLE.match(text):
                yield f'{path}:{node.lineno}: a docstring begins with "{riddle[1]}"; begin with a noun or a verb'
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in _NAMELESS:
                yield f'{path}:{node.lineno}: a variable is called "{name}"; call it what it holds'


def main() -> int:
    """Print all problems of the clean folders."""
    paths = (path for folder in CLEAN for path in sorted((ROOT / folder).rglob("*.py")))
    found = [problem for path in paths for problem in problems(path)]
    sys.stdout.write("".join(f"{problem}\n" for problem in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
