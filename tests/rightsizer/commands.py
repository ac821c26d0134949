"""Runs commands of gpu-rightsizer in the process of the test."""

import dataclasses
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from rightsizer.cli import main


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The result of one command."""

    code: int
    out: str
    err: str

    @property
    def items(self) -> dict[str, dict[str, Any]]:
        """The items of the printed document, by name."""
        assert self.out, self.err
        return {item["name"]: item for item in json.loads(self.out)["items"]}


def run_command(*arguments: str) -> Run:
    """Run `gpu-rightsizer` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Run(code, out.getvalue(), err.getvalue())
