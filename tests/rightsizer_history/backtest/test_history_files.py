"""A history that is kept in files is what was read."""

import array
import datetime
import json
import pathlib
import random
import re
import sys

import hypothesis
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from rightsizer.errors import ConfigurationError, UsageError
from rightsizer.model import Device
from rightsizer.usage.step_usage import COLUMNS, MISSING, DeviceSteps, StepsByUse
from rightsizer_history.backtest.history_files import MOST_PARTS, HistoryFiles, HistoryPart
from rightsizer_history.backtest.pod_facts import AskedFacts, PodFacts, owner_ref

DAY = datetime.date(2026, 11, 1)
STEP = datetime.timedelta(hours=1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
COLUMN = st.lists(st.sampled_from([0, 1, 9_999, MISSING]), min_size=24, max_size=24)


def _files(at: pathlib.Path, **labels: str) -> HistoryFiles:
    return HistoryFiles(str(at), STEP, labels)


def _steps(*columns: list[int], model: str = "NVIDIA H100") -> DeviceSteps:
    values = {name: array.array("H", column) for name, column in zip(COLUMNS, columns, strict=True)}
    return DeviceSteps(Device("GPU-1", "", model, ""), "dcgm", 1, values)


@st.composite
def _usages(draw: st.DrawFn) -> StepsByUse:
    keys = draw(st.lists(st.tuples(TEXT, TEXT, TEXT, TEXT), unique=True, max_size=4))
    found: StepsByUse = {}
    for key in keys:
        device = Device(key[2], key[3], draw(TEXT), draw(TEXT))
        columns = {name: array.array("H", draw(COLUMN)) for name in COLUMNS}
        found[key] = DeviceSteps(device, draw(TEXT), draw(st.integers(0, 3)), columns)
    return found


@hypothesis.given(_usages(), st.randoms())
def test_usage_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, found: StepsByUse, draw: random.Random
) -> None:
    """Whole, and in any number of parts."""
    files = _files(tmp_path_factory.mktemp("kept"), cluster="a")
    files.write_usage(DAY, HistoryPart(), found, "ours", is_checked=True)
    assert files.usage(DAY) == (found, "ours", True)
    files = _files(tmp_path_factory.mktemp("kept"), cluster="a")
    count = draw.randint(2, 4)
    place = {key: draw.randrange(count) for key in found}
    for index in range(count):
        assert not files.days()
        part = HistoryPart(index, count)
        mine = {key: one for key, one in found.items() if place[key] == index}
        files.write_usage(DAY, part, mine, "ours", is_checked=True)
        assert files.days(part) == [DAY]
    assert files.days() == [DAY]
    assert files.usage(DAY) == (found, "ours", True)


def test_usage_of_one_device_in_two_parts_is_the_higher(tmp_path: pathlib.Path) -> None:
    """As where two exporters name its UUID in different labels."""
    files = _files(tmp_path)
    low, high = [5, MISSING, MISSING, *[0] * 21], [7, 3, MISSING, *[0] * 21]
    for index, column in enumerate((low, high)):
        files.write_usage(
            DAY,
            HistoryPart(index, 2),
            {("n", "p", "GPU-1", ""): _steps(*[column] * 10)},
            "ours",
            is_checked=True,
        )
    ((_, entry),) = files.usage(DAY)[0].items()
    assert all(column.tolist() == high for column in entry.columns.values())


@hypothesis.given(st.text(max_size=8) | st.uuids().map(str), st.integers(1, MOST_PARTS))
def test_part_of_a_uuid_is_exactly_one(uuid: str, count: int) -> None:
    """Also of a series without a UUID, or with one that ends otherwise."""
    hypothesis.assume("\n" not in uuid)
    parts = [HistoryPart(index, count).matchers("UUID") for index in range(count)]
    assert sum(all(_meets(uuid, matcher) for matcher in part) for part in parts) == 1


def _meets(value: str, matcher: str) -> bool:
    match = re.fullmatch(r'UUID(=~|!~)["\'](.*)["\']', matcher)
    assert match is not None
    return bool(re.fullmatch(match[2], value)) == (match[1] == "=~")


def test_facts_come_back_as_they_were(tmp_path: pathlib.Path) -> None:
    """With the labels and resources that were asked for; more of them have to be asked again."""
    files = _files(tmp_path)
    facts = {
        ("n", "p"): PodFacts(owner_ref("n", "Deployment", "w"), "node-1", "high", 8, {"team": "blue"}),
        ("n", "q"): PodFacts(images=("a/notebook:1", "b")),
    }
    asked = AskedFacts(frozenset({"team"}), frozenset({"example.com/vgpu=shares"}))
    assert not files.days_with_facts([DAY], asked)
    files.write_facts(DAY, facts, asked)
    assert files.facts(DAY) == facts
    assert files.days_with_facts([DAY, DAY + datetime.timedelta(1)], asked) == {DAY}
    assert files.days_with_facts([DAY], AskedFacts()) == {DAY}
    assert not files.days_with_facts([DAY], AskedFacts(frozenset({"team", "owner"})))
    assert not files.days_with_facts([DAY], AskedFacts(resources=frozenset({"example.com/other"})))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all"], ids=["empty", "cut", "other"])
def test_broken_file_is_named_with_what_helps(tmp_path: pathlib.Path, content: bytes) -> None:
    """Nothing else is believed of it."""
    files = _files(tmp_path)
    files.write_usage(DAY, HistoryPart(), {}, "ours", is_checked=True)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"{path.name}: cannot be read as history .* delete it"):
        files.usage(DAY)


def test_file_of_somebody_else_is_refused(tmp_path: pathlib.Path) -> None:
    """As one of another program, or of another cluster."""
    files = _files(tmp_path, cluster="a")
    files.write_usage(DAY, HistoryPart(), {}, "ours", is_checked=True)
    with pytest.raises(ConfigurationError, match="use another directory"):
        _files(tmp_path, cluster="b").usage(DAY)
    (path,) = tmp_path.iterdir()
    pyarrow.parquet.write_table(pyarrow.table({"namespace": ["n"]}), path)
    with pytest.raises(ConfigurationError, match="cannot be read as history"):
        files.usage(DAY)


def test_file_of_another_version_says_so(tmp_path: pathlib.Path) -> None:
    """Not that its labels were others."""
    files = _files(tmp_path, cluster="a")
    files.write_usage(DAY, HistoryPart(), {}, "ours", is_checked=True)
    (path,) = tmp_path.iterdir()
    table = pyarrow.parquet.read_table(path)
    told = json.loads(table.schema.metadata[b"gpu-rightsizer"])
    newer = table.replace_schema_metadata(
        {"gpu-rightsizer": json.dumps({**told, "version": told["version"] + 1})}
    )
    pyarrow.parquet.write_table(newer, path)
    with pytest.raises(
        ConfigurationError, match=f"{path.name}: is of another version of this program; delete it"
    ):
        files.usage(DAY)


@pytest.mark.parametrize(
    "url", ["s3://AKIA:hunter2@bucket/x", "s3://hunter2@bucket", "s3://:hunter2@bucket/x?region=a"]
)
def test_credentials_in_the_address_are_refused_and_not_repeated(url: str) -> None:
    """Notes and errors name the address."""
    with pytest.raises(UsageError, match="contains credentials; give them to the environment") as refused:
        HistoryFiles(url, STEP, {})
    assert "hunter2" not in str(refused.value)


def test_history_without_its_library_names_the_extra(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who keeps a history needs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(
        ConfigurationError, match=r"pyarrow is missing.*pip install 'gpu-rightsizer\[history\]'"
    ):
        _files(tmp_path).days()


def test_write_that_was_interrupted_is_not_there(tmp_path: pathlib.Path) -> None:
    """A file has its name only when it is whole."""
    files = _files(tmp_path)
    files.write_usage(DAY, HistoryPart(), {}, "ours", is_checked=True)
    (path,) = tmp_path.iterdir()
    path.rename(f"{path}.unfinished")
    assert files.days(HistoryPart()) == files.days() == []
