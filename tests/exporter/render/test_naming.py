"""DCGM's two generations of names: which are served, in which units, with which labels."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.exporter.conftest import MakeNode
from tests.exporter.rig import h100, reading

pytestmark = pytest.mark.driver

OLD = {
    "DCGM_FI_DEV_GPU_UTIL": 87,
    "DCGM_FI_DEV_FB_USED": 20 * 1024,
    "DCGM_FI_DEV_SM_CLOCK": 1980,
    "DCGM_FI_DEV_POWER_USAGE": 412.345,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 98765432,
    "DCGM_FI_DEV_GPU_TEMP": 61,
}
NEW = {
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.87,
    "DCGM_FI_DEV_FB_USED_BYTES": 20 * 2**30 + 12345,
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": 1980e6,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 412.345,
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 98765.432,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 61,
}


def _scrape(make_node: MakeNode, *flags: str) -> dict[str, tuple[float, dict[str, str]]]:
    """Value and labels of each series of a node with one GPU, by name."""
    node = make_node(h100(1))
    node.board.set_gpu(0, reading())
    done = node.once("--once", "--pod-resources-socket=", "--node-name=n1", *flags)
    assert done.code == 0, done.err
    samples = [sample for family in text_string_to_metric_families(done.out) for sample in family.samples]
    # The parser gives counters the suffix that DCGM's do not have.
    plain = {line.partition("{")[0] for line in done.out.splitlines()}
    return {
        sample.name if sample.name in plain else sample.name.removesuffix("_total"): (
            sample.value,
            sample.labels,
        )
        for sample in samples
    }


@pytest.mark.parametrize(
    ("naming", "served", "not_served"), [("dcgm", OLD, NEW), ("dcgm-4.9", NEW, OLD), ("both", OLD | NEW, {})]
)
def test_naming_selects_names_and_units(
    make_node: MakeNode, naming: str, served: dict[str, float], not_served: dict[str, float]
) -> None:
    """The same readings, in whole percents, MiB and mJ, or in base units."""
    found = _scrape(make_node, "--naming", naming)
    assert {name: found[name][0] for name in served} == pytest.approx(served)
    assert not found.keys() & not_served.keys()


def test_naming_selects_the_driver_label(make_node: MakeNode) -> None:
    """A series carries the label of the generation that its name is of, and not the other's."""
    found = _scrape(make_node, "--naming=both")
    old, new = found["DCGM_FI_DEV_GPU_UTIL"][1], found["DCGM_FI_DEV_GPU_UTIL_RATIO"][1]
    assert old["DCGM_FI_DRIVER_VERSION"] == new["DCGM_FI_SYSTEM_DRIVER_VERSION"] == "570.133.20"
    assert "DCGM_FI_SYSTEM_DRIVER_VERSION" not in old
    assert "DCGM_FI_DRIVER_VERSION" not in new


@pytest.mark.parametrize(
    ("label", "expected"),
    [("hostname", {"hostname"}), ("Hostname", {"Hostname"}), ("both", {"hostname", "Hostname"})],
)
def test_hostname_label_has_the_selected_names(make_node: MakeNode, label: str, expected: set[str]) -> None:
    """Under one name, the other, or both, with the same value."""
    _, labels = _scrape(make_node, "--hostname-label", label)["DCGM_FI_DEV_GPU_UTIL"]
    assert {name for name, value in labels.items() if value == "n1"} == expected


def test_unknown_naming_is_refused(make_node: MakeNode) -> None:
    """Exit 2, with those that there are."""
    done = make_node(h100(1)).once("--once", "--naming=dcgm-5")
    assert done.code == 2
    assert done.err.splitlines() == [
        'error: --naming "dcgm-5": must be one of dcgm, dcgm-4.9, both; did you mean dcgm?',
        "see gpu-exporter --help",
    ]
