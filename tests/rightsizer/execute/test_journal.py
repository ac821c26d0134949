"""The journal: what is in it, whatever happens to the machine that writes it."""

import datetime
import json
import pathlib
import signal
import stat
import subprocess
import sys

import pytest

from rightsizer.changes.record_codec import JournalEntry
from rightsizer.cli import main
from rightsizer.errors import ConfigurationError
from rightsizer.execute.journal import ROTATED_FILES, Journal, read_journal
from rightsizer.model import ObjectRef, Outcome, Result
from rightsizer.report.outcomes import journal_text, unfinished
from tests.rightsizer.build import AT, all_idle, judged, policy, workload

ROOT = pathlib.Path(__file__).parents[3]


def _journal(path: pathlib.Path, **changes: int) -> Journal:
    return Journal(path, "run-1", lambda: AT, **changes)


def _outcome(detail: str = "spec.replicas: 1 → 0") -> Outcome:
    item = workload()
    return Outcome(item.ref, "scale-to-zero", Result.DONE, detail, 1, AT)


def test_journal_intent_precedes_outcome_in_owner_only_file(tmp_path: pathlib.Path) -> None:
    """One line each, with what is needed to know what it was about."""
    path = tmp_path / "journal"
    journal, item = _journal(path), workload()
    journal.intent(judged(item, all_idle(item), policy()))
    assert len(unfinished(list(_steps(path)))) == 1
    journal.outcome(_outcome())
    journal.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["step"], first["action"], first["name"]) == ("intent", "scale-to-zero", "w")
    assert (second["step"], second["result"], second["run"]) == ("outcome", "done", "run-1")
    assert unfinished(list(_steps(path))) == []


def _steps(path: pathlib.Path) -> list[JournalEntry]:
    return [step for step in read_journal(path) if isinstance(step, JournalEntry)]


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_journal_torn_last_line_loses_only_that_record(tmp_path: pathlib.Path, cut: int) -> None:
    """What came before is read, it is said what cannot be, and the next record does not run into it."""
    path = tmp_path / "journal"
    journal = _journal(path)
    for _ in range(3):
        journal.outcome(_outcome())
    journal.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = _journal(path)
    again.outcome(_outcome("after"))
    again.close()
    found = list(read_journal(path))
    assert [step.reason for step in found if isinstance(step, JournalEntry)][-1] == "after"
    assert len([one for one in found if isinstance(one, str)]) == (0 if cut == 1 else 1)


def test_journal_over_size_is_rotated_and_oldest_deleted(tmp_path: pathlib.Path) -> None:
    """By size; reading goes through all of them, oldest first."""
    path = tmp_path / "journal"
    journal = _journal(path, largest=600)
    for number in range(40):
        journal.outcome(_outcome(f"number {number}"))
    journal.close()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["journal", *(f"journal.{number}" for number in range(1, ROTATED_FILES + 1))]
    assert all(one.stat().st_size <= 600 for one in tmp_path.iterdir())
    reasons = [step.reason for step in _steps(path)]
    assert reasons == [f"number {number}" for number in range(40 - len(reasons), 40)]


def test_journal_crash_during_rotation_loses_no_record(tmp_path: pathlib.Path) -> None:
    """The next file was never opened: the one that is there is read."""
    path = tmp_path / "journal"
    journal = _journal(path)
    journal.outcome(_outcome("before"))
    journal.close()
    path.rename(tmp_path / "journal.1")
    assert [step.reason for step in _steps(path)] == ["before"]


WRITER = """
import datetime, pathlib, sys
from rightsizer.execute.journal import Journal
from rightsizer.model import ObjectRef, Outcome, Result
at = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
journal = Journal(pathlib.Path(sys.argv[1]), "run-1", lambda: at, largest=50_000)
number = 0
while True:
    ref = ObjectRef("apps/v1", "Deployment", "team", f"w{number}")
    journal.outcome(Outcome(ref, "scale-to-zero", Result.DONE, "x" * 2_000, 1, at))
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("records", [1, 7, 25])
def test_journal_acknowledged_records_survive_sigkill(tmp_path: pathlib.Path, records: int) -> None:
    """Killed in the middle of writing: every record that was acknowledged is there, and at most one more is torn."""
    path = tmp_path / "journal"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(records)]
    writer.send_signal(signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().splitlines()]
    writer.wait()
    writer.stdout.close()
    found = list(read_journal(path))
    names = [step.name for step in found if isinstance(step, JournalEntry)]
    assert set(names) >= {f"w{number}" for number in told[-40:]}
    assert len([one for one in found if isinstance(one, str)]) <= 1
    _journal(path).close()


def test_journal_each_record_is_fsynced(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses its power loses no record: the file is synchronised after each."""
    path, synced = tmp_path / "journal", []
    journal = _journal(path)
    monkeypatch.setattr("os.fsync", lambda _: synced.append(path.read_text().count("\n")))
    for _ in range(3):
        journal.outcome(_outcome())
    monkeypatch.undo()
    journal.close()
    assert synced == [1, 2, 3]


def test_journal_unwritable_path_is_reported_before_changes(tmp_path: pathlib.Path) -> None:
    """Before anything is done."""
    with pytest.raises(ConfigurationError, match="cannot be written: No such file or directory"):
        _journal(tmp_path / "nowhere" / "journal")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory"):
        list(read_journal(tmp_path / "nowhere"))


def test_journal_intent_without_outcome_is_reported() -> None:
    """The object says whether it took effect."""
    ref = ObjectRef("apps/v1", "Deployment", "team", "w")
    intent = JournalEntry(
        datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC),
        "r",
        "intent",
        "team",
        "Deployment",
        "w",
        "suspend",
    )
    assert f"suspend of {ref} was begun in run r, and no outcome is recorded" in journal_text([intent], [])


def test_journal_two_writers_keep_order_across_rotation(tmp_path: pathlib.Path) -> None:
    """As `undo` does beside `run`: neither sets aside what the other one still writes to, and the order stays."""
    path = tmp_path / "journal"
    writers = [_journal(path, largest=4000), _journal(path, largest=4000)]
    for number in range(40):
        writers[number % 2].reconcile_intent(
            ObjectRef("apps/v1", "Deployment", "team", f"w{number}"), "undo", "x" * 100
        )
    for writer in writers:
        writer.close()
    assert [step.name for step in _steps(path)] == [f"w{number}" for number in range(40)]
    assert all(one.stat().st_size <= 4000 for one in tmp_path.iterdir())


_WRITER = """
import datetime, pathlib, sys
from rightsizer.execute.journal import Journal
from rightsizer.model import ObjectRef
journal = Journal(pathlib.Path(sys.argv[1]), sys.argv[2], lambda: datetime.datetime.now(datetime.UTC), largest=50_000)
for number in range(150):
    journal.reconcile_intent(ObjectRef("apps/v1", "Deployment", "team", f"{sys.argv[2]}-{number}"), "undo", "x" * 100)
"""


def test_journal_three_processes_lose_no_record(tmp_path: pathlib.Path) -> None:
    """Three at the same time, each with 150 records: all are there, whole, and each writer's in its order."""
    path = tmp_path / "journal"
    running = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), f"run-{number}"], cwd=ROOT)
        for number in range(3)
    ]
    assert [one.wait(timeout=60) for one in running] == [0, 0, 0]
    found = list(read_journal(path))
    steps = [step for step in found if isinstance(step, JournalEntry)]
    assert len(steps) == len(found) == 450
    for run in ("run-0", "run-1", "run-2"):
        assert [step.name for step in steps if step.run == run] == [
            f"{run}-{number}" for number in range(150)
        ]


@pytest.mark.parametrize("command", [("apply", "--yes"), ("run", "--every", "1h"), ("undo",), ("history",)])
def test_journal_empty_path_is_refused(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """As of a variable that is not set: that none would be written has to be noticed at once."""
    with pytest.raises(SystemExit) as ended:
        main([*command, "--journal", ""])
    assert ended.value.code == 2
    assert "error: --journal: the name of the file is empty" in capsys.readouterr().err
