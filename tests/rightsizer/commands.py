"""Runs commands of gpu-rightsizer in the process of the test."""

import dataclasses
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Self

from rightsizer.__main__ import main


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

    @property
    def changes(self) -> list[dict[str, Any]]:
        """What the log has of changes, with --log-format json."""
        entries = [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]
        return [entry for entry in entries if "step" in entry]

    def logged(self) -> Self:
        """The same, once its log is compared with its document: each outcome, after an intent if it was done."""
        begun, ended = set(), set()
        for change in self.changes:
            assert change["run"], change
            assert change["reason"], change
            ref = change["namespace"], change["kind"], change["name"]
            if change["step"] == "intent":
                begun.add(ref)
            else:
                ended.add((*ref, change["action"], change["result"]))
                assert ref in begun or change["result"] != "done", change
        for item in json.loads(self.out)["items"] if self.out else ():
            parts = ("namespace", "kind", "name", "action", "result")
            assert tuple(item[part] for part in parts) in ended, self.err
        return self


def run_command(*arguments: str) -> Run:
    """Run `gpu-rightsizer` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Run(code, out.getvalue(), err.getvalue())
