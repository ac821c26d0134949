"""Holds the size of the project under ceilings: lines, files and classes of packages, commands, fields, stores.

`make check` runs it. `python -m scripts.ceilings --lower` lowers each ceiling to what there is; only a person raises
one, and says why in the commit.
"""

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from rightsizer.__main__ import parser

ROOT = Path(__file__).parents[1]
TABLE = Path("scripts/ceilings.toml")
_HEAD = f"# {(__doc__ or '').splitlines()[0]}\n# See scripts/ceilings.py.\n\n"

Sizes = Mapping[str, int]


def size_of(folder: Path) -> Sizes:
    """Lines, files and classes of all Python below a folder."""
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    return {
        "lines": sum(text.count("\n") for text in texts),
        "files": len(texts),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
    }


def surface() -> Sizes:
    """Commands of gpu-rightsizer, fields of a policy, and stores of state in docs/state.md, which a test compares."""
    actions = parser()._actions  # noqa: SLF001 - argparse has no other list of commands
    commands = next(one.choices for one in actions if isinstance(one.choices, dict))
    schema = json.loads((ROOT / "docs/policy.schema.json").read_text())
    kinds = (schema, *schema["$defs"].values())
    fields = sum(len(one.get("properties", ())) for one in kinds)
    stores = (ROOT / "docs/state.md").read_text().count("\n| **")
    return {"commands": len(commands), "policy-fields": fields, "stores": stores}


def sizes(root: Path, ceilings: Mapping[str, Sizes]) -> dict[str, Sizes]:
    """What there is of each row of the table."""
    return {name: surface() if name == "surface" else size_of(root / name) for name in ceilings}


def above(found: Mapping[str, Sizes], ceilings: Mapping[str, Sizes]) -> list[str]:
    """What is above its ceiling, for people."""
    return [
        f"{name}: {found[name][what]:,} {what}, ceiling {ceiling:,}"
        for name, row in ceilings.items()
        for what, ceiling in row.items()
        if found[name][what] > ceiling
    ]


def main(root: Path = ROOT) -> int:
    """Compare, or lower the ceilings."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--lower", action="store_true", help="lower each ceiling to what there is")
    ceilings: dict[str, dict[str, int]] = tomllib.loads((root / TABLE).read_text())
    found = sizes(root, ceilings)
    if options.parse_args().lower:
        rows = (
            f'"{name}" = {{ '
            + ", ".join(f"{what} = {min(ceiling, found[name][what])}" for what, ceiling in row.items())
            + " }\n"
            for name, row in ceilings.items()
        )
        (root / TABLE).write_text(_HEAD + "".join(rows))
        return 0
    problems = above(found, ceilings)
    sys.stdout.write("".join(f"{one}\n" for one in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
