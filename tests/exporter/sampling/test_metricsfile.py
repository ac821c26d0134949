"""The list of metrics: what it selects, under which names and types, what is wrong with it, its exchange meanwhile."""

import os
import signal
import urllib.request
from pathlib import Path

import pytest

from exporter.sampling import catalogue
from exporter.sampling.catalogue import LABELS
from exporter.sampling.metricslist import dcgm_fields
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Ended, Exporter, Node, eventually, h100, reading

pytestmark = pytest.mark.driver

RELOADED = "gpu_exporter_config_last_reload_successful"
RELOADED_AT = "gpu_exporter_config_last_reload_success_timestamp_seconds"

ON = """
SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE GPU_UTIL MEM_COPY_UTIL ENC_UTIL FB_FREE FB_USED FB_RESERVED
ROW_REMAP_FAILURE XID_ERRORS VGPU_LICENSE_STATUS
"""
ON_COUNTERS = """
TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER NVLINK_BANDWIDTH_TOTAL UNCORRECTABLE_REMAPPED_ROWS
CORRECTABLE_REMAPPED_ROWS
"""
ON_PROFILING = "GR_ENGINE_ACTIVE PIPE_TENSOR_ACTIVE DRAM_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"
OFF = """
POWER_VIOLATION THERMAL_VIOLATION SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION LOW_UTIL_VIOLATION RELIABILITY_VIOLATION
ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL RETIRED_SBE RETIRED_DBE RETIRED_PENDING
NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL NVLINK_REPLAY_ERROR_COUNT_TOTAL
NVLINK_RECOVERY_ERROR_COUNT_TOTAL NVLINK_BANDWIDTH_L0
"""
OFF_LABELS = """
NVML_VERSION DEV_BRAND DEV_SERIAL DEV_OEM_INFOROM_VER DEV_ECC_INFOROM_VER DEV_POWER_INFOROM_VER DEV_INFOROM_IMAGE_VER
DEV_VBIOS_VERSION
"""
OFF_EXPORTER = "CLOCK_EVENTS_COUNT XID_ERRORS_COUNT GPU_HEALTH_STATUS P2P_STATUS"
"""Metrics of dcgm-exporter's two lists, also those in comments, each with its type there."""


def _as_shipped(*, uncommented: bool) -> str:
    """A list of the same fields as dcgm-exporter's default-counters.csv, in other words; or with all of them served."""
    off = "" if uncommented else "# "
    lines = ["# Format,,", "# FIELD, type, help,,", ""]
    lines += [f"DCGM_FI_DEV_{name},  gauge, About {name}, with a comma." for name in ON.split()]
    lines += ["DCGM_FI_DEV_DEC_UTIL ,     gauge, A blank before the comma.", "", "\t"]
    lines += [f"DCGM_FI_DEV_{name}, counter, About {name}" for name in ON_COUNTERS.split()]
    lines += ["DCGM_FI_DRIVER_VERSION,        label, Driver"]
    lines += [f"DCGM_FI_PROF_{name},   gauge, About {name}" for name in ON_PROFILING.split()]
    lines += [f"{off}DCGM_FI_DEV_{name}, counter, About {name}" for name in OFF.split()]
    lines += [f"{off}DCGM_FI_{name},             label, About {name}" for name in OFF_LABELS.split()]
    lines += [f"{off}DCGM_EXP_{name}, counter, About {name}" for name in OFF_EXPORTER.split()]
    return "\n".join(lines)


def _names(exposition: str) -> set[str]:
    """The families of devices in an exposition."""
    return {line.split()[2] for line in exposition.splitlines() if line.startswith("# TYPE DCGM_")}


def _once(node: Node, folder: Path, text: str, *flags: str) -> Ended:
    """One exposition with this list."""
    path = folder / "counters.csv"
    path.write_text(text)
    return node.once("--once", "--pod-resources-socket=", f"--metrics-file={path}", *flags)


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One GPU at work."""
    node = make_node(h100(1))
    node.board.set_gpu(0, reading())
    return node


def test_dcgm_exporters_default_list_is_accepted(node: Node, tmp_path: Path) -> None:
    """All that it switches on is served, under its name, and nothing is said."""
    text = _as_shipped(uncommented=False)
    done = _once(node, tmp_path, text)
    assert done.code == 0, done.err
    listed = {f"DCGM_FI_DEV_{name}" for name in [*ON.split(), *ON_COUNTERS.split(), "DEC_UTIL"]}
    listed |= {f"DCGM_FI_PROF_{name}" for name in ON_PROFILING.split()}
    assert _names(done.out) == listed
    assert "skipped" not in done.err


def test_dcgm_exporters_full_list_is_accepted(node: Node, tmp_path: Path) -> None:
    """As is what people make of it when they remove all the comment signs."""
    text = _as_shipped(uncommented=True)
    done = _once(node, tmp_path, text)
    assert done.code == 0, done.err
    assert {"DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"} <= _names(done.out)
    (line,) = [number for number, line in enumerate(text.splitlines(), 1) if "GPU_HEALTH_STATUS" in line]
    path = tmp_path / "counters.csv"
    assert f"{path}: skipped, not supported: DCGM_EXP_GPU_HEALTH_STATUS (line {line})\n" in done.err
    assert "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0" in _names(done.out)


def test_skipped_fields_are_logged_in_one_line(node: Node, tmp_path: Path) -> None:
    """Whatever the reason, each with its line; what is served is served."""
    done = _once(
        node,
        tmp_path,
        "DCGM_FI_DEV_GPU_UTIL, gauge, x\n"
        "DCGM_EXP_GPU_HEALTH_STATUS, gauge, x\n"
        "DCGM_FI_DEV_FB_USED, label, x\n"
        "DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, x\n",
    )
    (line,) = done.err.splitlines()
    assert line.endswith(
        f" warning {tmp_path}/counters.csv: skipped, not supported: DCGM_EXP_GPU_HEALTH_STATUS (line 2), "
        "DCGM_FI_DEV_CPU_UTIL_TOTAL (line 4); numbers, which cannot be labels: DCGM_FI_DEV_FB_USED (line 3)"
    )
    assert _names(done.out) == {"DCGM_FI_DEV_GPU_UTIL"}


def test_listed_metrics_have_the_lists_help_and_type(node: Node, tmp_path: Path) -> None:
    """Help text, commas and quotes and all, and the type are the list's; what is not listed is not served."""
    done = _once(
        node,
        tmp_path,
        "DCGM_FI_DEV_GPU_UTIL, counter, Busy, in %\n"
        'DCGM_FI_DEV_FB_USED,gauge,"MiB, ""used"""\r\n'
        "DCGM_FI_DEV_GPU_TEMP, gauge,\n",
    )
    lines = done.out.splitlines()
    assert _names(done.out) == {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP"}
    assert "# HELP DCGM_FI_DEV_GPU_UTIL Busy, in %" in lines
    assert "# TYPE DCGM_FI_DEV_GPU_UTIL counter" in lines
    assert '# HELP DCGM_FI_DEV_FB_USED MiB, "used"' in lines
    assert "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C)." in lines
    assert "gpu_exporter_nvml_up 1" in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "flags", "series", "value"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", (), "DCGM_FI_DEV_GPU_UTIL", 87),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", (), "DCGM_FI_DEV_GPU_UTIL_RATIO", 0.87),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", ("--naming=dcgm",), "DCGM_FI_DEV_GPU_UTIL", 87),
        ("DCGM_FI_DEV_GPU_UTIL", ("--naming=dcgm-4.9",), "DCGM_FI_DEV_GPU_UTIL_RATIO", 0.87),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", (), "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0),
        (
            "DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS",
            (),
            "DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS",
            700,
        ),
    ],
)
def test_metric_is_found_by_any_name(
    node: Node, tmp_path: Path, field: str, flags: tuple[str, ...], series: str, value: float
) -> None:
    """It is served as the list writes it, in that name's unit, unless --naming says otherwise."""
    done = _once(node, tmp_path, f"{field}, gauge, In the list's words\n", *flags)
    assert _names(done.out) == {series}
    (line,) = [line for line in done.out.splitlines() if line.startswith(f"{series}{{")]
    assert float(line.split()[-1]) == value
    # the words are those for another unit, where the name is another
    assert (f"# HELP {series} In the list's words" in done.out.splitlines()) == (series == field)


def test_label_field_becomes_a_label(make_node: MakeNode, tmp_path: Path) -> None:
    """On every series, under the list's name for it; MIG instances have their GPU's; what a card lacks is absent."""
    node = make_node(NodeSpec("mig", (GpuSpec("A100-SXM4-40GB", ("3g.20gb",)), GpuSpec("A100-SXM4-40GB"))))
    names = ["DRIVER_VERSION", *OFF_LABELS.split()]
    text = "DCGM_FI_DEV_FB_USED, gauge, x\n" + "".join(f"DCGM_FI_{name}, label, x\n" for name in names)
    path = tmp_path / "counters.csv"
    path.write_text(text)
    with node.exporting(f"--metrics-file={path}", pods=False) as exporter:
        labels = [f"DCGM_FI_{name}" for name in names]
        found = exporter.series("DCGM_FI_DEV_FB_USED", "gpu", "GPU_I_ID", *labels).keys()
    by_device = {values[:2]: dict(zip(names, values[2:], strict=True)) for values in found}
    assert len(by_device) == 3
    first, second = by_device["0", ""], by_device["1", ""]
    assert {**first, "DEV_SERIAL": ""} == {
        "DRIVER_VERSION": "570.133.20",
        "NVML_VERSION": "12.570.133.20",
        "DEV_BRAND": "NVIDIA",
        "DEV_SERIAL": "",
        "DEV_OEM_INFOROM_VER": "2.1",
        "DEV_ECC_INFOROM_VER": "7.16",
        "DEV_POWER_INFOROM_VER": "",
        "DEV_INFOROM_IMAGE_VER": "G520.0200.00.05",
        "DEV_VBIOS_VERSION": "92.00.19.00.10",
    }
    assert first["DEV_SERIAL"].isdigit()
    assert first["DEV_SERIAL"] != second["DEV_SERIAL"]
    assert [values["DEV_SERIAL"] for key, values in by_device.items() if key[1]] == [first["DEV_SERIAL"]]


def test_label_values_are_read_once(node: Node, tmp_path: Path) -> None:
    """A serial number that was read is not read again; one that could not be is."""
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, x\nDCGM_FI_DEV_SERIAL, label, x\n")
    node.board.fault("nvmlDeviceGetSerial", code=999)
    with node.exporting(f"--metrics-file={path}", pods=False) as exporter:
        series = "DCGM_FI_DEV_GPU_UTIL"
        assert list(exporter.series(series, "DCGM_FI_DEV_SERIAL")) == [("",)]
        node.board.clear_faults()
        (serial,) = eventually(
            lambda: [value for (value,) in exporter.series(series, "DCGM_FI_DEV_SERIAL") if value]
        )
        node.board.fault("nvmlDeviceGetSerial", code=999)
        node.board.set_gpu(0, reading(gpu_util_percent=3))
        eventually(lambda: list(exporter.series(series, "gpu").values()) == [3])
        assert list(exporter.series(series, "DCGM_FI_DEV_SERIAL")) == [(serial,)]


def test_list_without_driver_label_has_none(node: Node, tmp_path: Path) -> None:
    """Labels are the list's, too."""
    done = _once(node, tmp_path, "DCGM_FI_DEV_GPU_UTIL, gauge, x\n")
    assert "DRIVER_VERSION" not in done.out


TWICE = "under another name; that line does not count; --naming both serves both"
TYPES = "available: gauge, counter, label"
COLUMNS = "not a field, its type and a help text, separated by commas"


def test_field_that_is_listed_again_counts_with_its_last_line(node: Node, tmp_path: Path) -> None:
    """As lists in production have it, and dcgm-exporter takes them: a warning with both lines, and one family."""
    done = _once(
        node,
        tmp_path,
        "DCGM_FI_DEV_GPU_TEMP, gauge, first\n"
        "DCGM_FI_DEV_FB_USED, gauge, kept\n"
        "DCGM_FI_DEV_GPU_TEMP, counter, second\n"
        "DCGM_FI_DRIVER_VERSION, label, x\n"
        "DCGM_FI_DEV_POWER_USAGE, gauge, old name\n"
        "DCGM_FI_DEV_BOARD_POWER_WATTS, gauge, new name\n"
        "DCGM_FI_DRIVER_VERSION, label, y\n"
        "DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, not served\n"
        "DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, not served\n"
        "DCGM_FI_DEV_GPU_TEMP, gauge, third\n",
    )
    assert done.code == 0, done.err
    found = [line.removeprefix("# HELP ") for line in done.out.splitlines() if line.startswith("# HELP DCGM")]
    assert sorted(found) == [
        "DCGM_FI_DEV_BOARD_POWER_WATTS new name",
        "DCGM_FI_DEV_FB_USED kept",
        "DCGM_FI_DEV_GPU_TEMP third",
    ]
    assert "# TYPE DCGM_FI_DEV_GPU_TEMP gauge" in done.out
    at = f"{tmp_path}/counters.csv, line"
    for message in (
        f"{at} 3: DCGM_FI_DEV_GPU_TEMP is listed again; line 1 does not count",
        f"{at} 6: DCGM_FI_DEV_BOARD_POWER_WATTS is the metric DCGM_FI_DEV_POWER_USAGE of line 5 {TWICE}",
        f"{at} 7: DCGM_FI_DRIVER_VERSION is listed again; line 4 does not count",
        f"{at} 10: DCGM_FI_DEV_GPU_TEMP is listed again; line 3 does not count",
    ):
        assert done.err.count(message) == 1, message
    assert done.err.count("DCGM_FI_DEV_CPU_UTIL_TOTAL (line 9)") == 1


def test_invalid_list_reports_all_problems(node: Node, tmp_path: Path) -> None:
    """With file, line, and what was probably meant; exit 2, no traceback, nothing served."""
    done = _once(
        node,
        tmp_path,
        "# comment\n"
        "DCGM_FI_DEV_GPU_UTILL, gauge, x\n"
        "DCGM_FI_DEV_GPU_TEMP, gauge, x\n"
        "DCGM_FI_DEV_GPU_TEMP, gauge, x\n"
        "\n"
        "DCGM_FI_DEV_FB_USED, histogram, x\n"
        "DCGM_FI_DEV_FB_FREE, gauge\n"
        "  , gauge, x\n"
        "DCGM_FI_DRIVER_VERSION, gauge, x\n"
        "qwertz, gauge, x\n",
    )
    at = f"error: {tmp_path}/counters.csv, line"
    assert (done.code, done.out) == (2, "")
    assert sorted(done.err.splitlines()) == sorted(
        [
            f"{at} 2: DCGM_FI_DEV_GPU_UTILL: unknown field; did you mean DCGM_FI_DEV_GPU_UTIL?",
            f'{at} 6: DCGM_FI_DEV_FB_USED: "histogram" is not a type; {TYPES}',
            f'{at} 7: "DCGM_FI_DEV_FB_FREE, gauge": {COLUMNS}',
            f'{at} 8: ", gauge, x": {COLUMNS}',
            f"{at} 9: DCGM_FI_DRIVER_VERSION is a text, not a gauge: its type must be label",
            f"{at} 10: qwertz: unknown field",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", ": has no metric; a line is a field, its type and a help text, with commas"),
        (
            "a.csv",
            b"# nothing\n\n",
            ": has no metric; a line is a field, its type and a help text, with commas",
        ),
        ("a.csv", b"# fine\n\xff\xfe\n", ", line 2: not UTF-8"),
        ("a.csv", b"#" * 2**20 + b"\n", ": larger than 1024 KiB"),
        (
            "a.yaml",
            b"metrics: []\n",
            ": dcgm-exporter's YAML is not supported; list the metrics as CSV, a line each: field, type, help",
        ),
        ("a.csv", None, ": cannot be read: no such file or directory"),
        (".", None, ": not a file"),
    ],
    ids=["empty", "comments-only", "not-utf-8", "huge", "yaml", "missing", "directory"],
)
def test_unreadable_list_is_refused(
    node: Node, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    """In one line, before anything is started."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    done = node.once("--once", "--pod-resources-socket=", f"--metrics-file={path}")
    assert (done.code, done.out, done.err) == (2, "", f"error: {path}{message}\n")


def test_list_with_other_selection_is_refused(node: Node, tmp_path: Path) -> None:
    """A list and a set, or a list and names of collectors, contradict each other."""
    done = _once(node, tmp_path, "DCGM_FI_DEV_GPU_UTIL, gauge, x\n", "--metrics=full", "--collectors=power")
    words = f"the metrics file {tmp_path}/counters.csv selects the metrics; drop one of them"
    assert (done.code, done.err) == (
        2,
        f"error: --collectors and --metrics: {words}\nsee gpu-exporter --help\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["-f", "--collectors", "-collectors", "--metrics-file"])
def test_list_is_set_by_dcgm_exporters_flags(node: Node, tmp_path: Path, flag: str) -> None:
    """Our --collectors takes names, dcgm-exporter's a path; which it is can be seen."""
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, x\n")
    done = node.once("--once", "--pod-resources-socket=", flag, str(path))
    assert _names(done.out) == {"DCGM_FI_DEV_GPU_UTIL"}


def test_list_is_set_by_either_variable(node: Node, tmp_path: Path) -> None:
    """Ours wins."""
    ours, dcgm = tmp_path / "ours.csv", tmp_path / "dcgm.csv"
    ours.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, x\n")
    dcgm.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
    variables = {"DCGM_EXPORTER_COLLECTORS": str(dcgm), "GPU_EXPORTER_ONCE": "true"}
    assert _names(node.once("--pod-resources-socket=", **variables).out) == {"DCGM_FI_DEV_GPU_TEMP"}
    variables["GPU_EXPORTER_METRICS_FILE"] = str(ours)
    assert _names(node.once("--pod-resources-socket=", **variables).out) == {"DCGM_FI_DEV_GPU_UTIL"}


def test_missing_default_list_of_dcgm_exporter_is_ignored(node: Node) -> None:
    """The chart names it in its arguments: then the default set is served, and that is said."""
    path = "/etc/dcgm-exporter/default-counters.csv"
    if Path(path).exists():
        pytest.skip("there is one on this machine")
    done = node.once("--once", "--pod-resources-socket=", "-f", path)
    assert done.code == 0
    assert f"{path}, dcgm-exporter's default list, does not exist: serving the set of --metrics" in done.err
    assert _names(done.out) == _names(node.once("--once", "--pod-resources-socket=").out)


def _served(exporter: Exporter) -> set[str]:
    status, text = exporter.get("/metrics")
    assert status == 200
    return _names(text)


@pytest.mark.parametrize("way", ["write", "replace", "configmap"])
def test_changed_list_is_reloaded(node: Node, tmp_path: Path, way: str) -> None:
    """Rewritten, replaced by another file, or exchanged as in a ConfigMap volume: by a link."""
    old, new = tmp_path / "..old", tmp_path / "..new"
    for folder, name in {old: "GPU_UTIL", new: "GPU_TEMP"}.items():
        folder.mkdir()
        (folder / "counters.csv").write_text(f"DCGM_FI_DEV_{name}, gauge, x\n")
    (tmp_path / "..data").symlink_to(old.name)
    path = tmp_path / "counters.csv"
    path.symlink_to("..data/counters.csv")
    with node.exporting(f"--metrics-file={path}", pods=False) as exporter:
        assert _served(exporter) == {"DCGM_FI_DEV_GPU_UTIL"}
        (before,) = exporter.series(RELOADED_AT).values()
        if way == "write":
            (old / "counters.csv").write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
        elif way == "replace":
            (new / "counters.csv").replace(old / "counters.csv")
        else:
            (tmp_path / "..tmp").symlink_to(new.name)
            (tmp_path / "..tmp").replace(tmp_path / "..data")
        eventually(lambda: _served(exporter) == {"DCGM_FI_DEV_GPU_TEMP"})
        assert exporter.series(RELOADED) == {(): 1}
        assert exporter.series(RELOADED_AT)[()] > before
        eventually(lambda: exporter.messages("reloaded") == [f"{path}: reloaded"])


def test_invalid_changed_list_keeps_the_previous_one(node: Node, tmp_path: Path) -> None:
    """It is logged once and shows as a metric; a good one mends it; counters go on through all of it."""
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, x\nDCGM_FI_DEV_MEMORY_TEMP, gauge, x\n")
    node.board.fault("nvmlDeviceGetFieldValues", code=999)
    failures = "gpu_exporter_reading_failures_total"
    with node.exporting(f"--metrics-file={path}", pods=False) as exporter:
        (at,) = exporter.series(RELOADED_AT).values()
        path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\nnonsense\n")
        eventually(lambda: exporter.series(RELOADED) == {(): 0})
        (count,) = exporter.series(failures).values()
        eventually(lambda: exporter.series(failures)[()] > count + 2)
        assert _served(exporter) == {"DCGM_FI_DEV_GPU_UTIL"}
        assert exporter.series(RELOADED_AT) == {(): at}
        assert exporter.messages("line 2") == [
            f'{path}, line 2: "nonsense": {COLUMNS}; keeping the previous list'
        ]
        path.unlink()
        eventually(lambda: exporter.messages("cannot be read"))
        assert _served(exporter) == {"DCGM_FI_DEV_GPU_UTIL"}
        path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
        eventually(lambda: exporter.series(RELOADED) == {(): 1})
        assert eventually(lambda: _served(exporter) == {"DCGM_FI_DEV_GPU_TEMP"})
        assert exporter.series(failures)[()] > count


def test_sighup_reloads_at_once(node: Node, tmp_path: Path) -> None:
    """Long before the next cycle is due, also where nothing has changed."""
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, x\n")
    with node.exporting(f"--metrics-file={path}", "--interval=1h", pods=False) as exporter:
        path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
        exporter.process.send_signal(signal.SIGHUP)
        eventually(lambda: _served(exporter) == {"DCGM_FI_DEV_GPU_TEMP"})
        exporter.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(exporter.messages("reloaded")) == 2)
        assert exporter.stop() == 0


def test_reload_loses_no_scrape(node: Node, tmp_path: Path) -> None:
    """Each answer is whole: one list's metrics or the other's."""
    path = tmp_path / "counters.csv"
    lists = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP")
    path.write_text(f"{lists[0]}, gauge, x\n")
    seen = set()
    with node.exporting(f"--metrics-file={path}", pods=False) as exporter:
        for number in range(60):
            fresh = tmp_path / "fresh"
            fresh.write_text(f"{lists[number // 10 % 2]}, gauge, x\n")
            os.utime(fresh, ns=(number * 10**9, number * 10**9))
            fresh.replace(path)
            exporter.process.send_signal(signal.SIGHUP)
            with urllib.request.urlopen(exporter.url + "/metrics", timeout=PATIENCE_S) as reply:
                assert reply.status == 200
                names = _names(reply.read().decode())
            assert len(names) == 1
            seen |= names
    assert seen == set(lists)


def test_sighup_without_a_list_does_nothing(node: Node) -> None:
    """It neither ends the exporter nor changes what is served, however often it comes."""
    with node.exporting("--interval=1h", pods=False) as exporter:
        before = _served(exporter)
        for _ in range(200):
            exporter.process.send_signal(signal.SIGHUP)
        node.board.set_gpu(0, reading(gpu_util_percent=5))
        exporter.process.send_signal(signal.SIGHUP)
        eventually(lambda: 5 in exporter.series("DCGM_FI_DEV_GPU_UTIL").values())
        assert _served(exporter) >= before
        assert exporter.series(RELOADED) == {}


def test_names_in_base_units_are_served_in_them(node: Node, tmp_path: Path) -> None:
    """DCGM 4.6.1 has a second field for each: hertz for MHz, bytes for MiB, a ratio for percent."""
    path = tmp_path / "counters.csv"
    names = "SM_MAX_CLOCK_HERTZ MEMORY_MAX_CLOCK_HERTZ BAR1_CAPACITY_BYTES FAN_SPEED_RATIO"
    path.write_text("".join(f"DCGM_FI_DEV_{name}, gauge, x\n" for name in (*names.split(), "CPU_UTIL_RATIO")))
    node.board.set_answer(0, "nvmlDeviceGetFanSpeed", 42)
    done = node.once("--once", "--pod-resources-socket=", "-f", str(path))
    assert "skipped, " in done.err
    assert "DCGM_FI_DEV_CPU_UTIL_RATIO (line 5)" in done.err
    values = {
        line.partition("{")[0].removeprefix("DCGM_FI_DEV_"): float(line.rpartition(" ")[2])
        for line in done.out.splitlines()
        if line.startswith("DCGM")
    }
    assert values == {
        "SM_MAX_CLOCK_HERTZ": 1980e6,
        "MEMORY_MAX_CLOCK_HERTZ": 2619e6,
        "BAR1_CAPACITY_BYTES": 128 * 2**30,
        "FAN_SPEED_RATIO": 0.42,
    }


def test_dcgm_names_of_the_catalogue_are_dcgms() -> None:
    """The catalogue's and the labels' names of both generations are in the list of DCGM's fields."""
    ours = {name for metric in catalogue.metrics() for name in (metric.dcgm.name, metric.dcgm_49.name)}
    ours |= {name for row in LABELS for name in (row.label.dcgm, row.label.dcgm_49)}
    unknown = {name for name in ours if name.startswith("DCGM_")} - dcgm_fields().keys()
    assert unknown == set()
