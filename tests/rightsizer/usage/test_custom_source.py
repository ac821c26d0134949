"""The signals file: metrics of another exporter, and errors with their lines."""

import pathlib
import textwrap

import pytest

from rightsizer.errors import ConfigurationError, SignalsError
from rightsizer.usage.sources import source_named
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import Metrics, near

GOOD = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Signals
labels:
  namespace: kube_namespace
  pod: [kube_pod, pod_name]
  device: uuid
  model: card
  node: host
quantities:
- {quantity: activity, selector: 'smi_utilization{kind="gpu"}', scale: 0.01}
- {quantity: traffic, selector: 'smi_utilization{kind="memory",}', scale: 0.01}
- {quantity: memory, selector: smi_memory_used_bytes}
- {quantity: power, selector: smi_power_milliwatts, scale: 0.001, limit: 1500}
"""


def _write(directory: pathlib.Path, text: str) -> str:
    path = directory / "signals.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.prometheus
def test_signals_file_metrics_of_another_exporter_are_read(
    prometheus: Prometheus, tmp_path: pathlib.Path
) -> None:
    """With its own names, labels, units and limits."""
    metrics = Metrics(prometheus)
    plain = {"namespace": "", "UUID": "", "modelName": "", "uuid": "7", "card": "L4", "host": "n1"}
    names = {**plain, "kube_namespace": metrics.space, "kube_pod": "a"}
    metrics.write({"smi_utilization": 35.0}, names, kind="gpu")
    metrics.write({"smi_utilization": 12.0}, names, kind="memory")
    metrics.write({"smi_utilization": 99.0}, names, kind="encoder")
    metrics.write({"smi_memory_used_bytes": 5e9, "smi_power_milliwatts": 72_000.0}, names)
    other = {**plain, "uuid": "8", "kube_namespace": metrics.space, "pod_name": "b"}
    metrics.write({"smi_utilization": 20.0}, other, kind="gpu")
    metrics.write({"smi_power_milliwatts": 1_600_000.0}, other)
    text = (pathlib.Path(__file__).parents[3] / "docs/signals.md").read_text()
    assert source_named(_write(tmp_path, text.split("```yaml\n")[1].split("```")[0])) is not None
    path = _write(tmp_path, GOOD)
    usage = metrics.usage("a", signals=path)
    assert (usage.activity_peak, usage.traffic_peak) == (near(0.35), near(0.12))
    assert (usage.memory_peak_bytes, usage.power_peak_w, usage.invalid) == (5e9, 72.0, ())
    assert (usage.device.uuid, usage.device.model, usage.coverage) == ("7", "L4", 1.0)
    second = metrics.usage("b", signals=path)
    assert (second.activity_peak, second.invalid) == (near(0.2), ("smi_power_milliwatts",))
    assert metrics.signal(path).nodes(metrics.at)["n1"].devices == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("v1alpha1", "v9", 1, "apiVersion: input should be 'gpu-rightsizer.io/v1alpha1'"),
        ("kind: Signals", "kind: Policy", 2, "kind: must be Signals"),
        ("  pod: [kube_pod, pod_name]\n", "", 3, "labels.pod: is missing"),
        ("[kube_pod, pod_name]", "[]", 5, "labels.pod: is empty; name at least one"),
        ("[kube_pod, pod_name]", "kube-pod", 5, "labels.pod[0]: must match '^[a-zA-Z_]"),
        ("  device: uuid", "  devise: uuid", 6, "labels.devise: unknown field; did you mean device?"),
        ("quantity: power", "quantity: watts", 13, "quantities[3].quantity: input should be 'activity', 'traffic'"),
        ("smi_memory_used_bytes", "sum(x)", 12, "quantities[2].selector: 'sum(x)' is not a selector such as"),
        ("smi_memory_used_bytes", "'x[5m]'", 12, "quantities[2].selector: 'x[5m]' is not a selector"),
        ("smi_memory_used_bytes", "'x{a=1}'", 12, "quantities[2].selector: 'x{a=1}' is not a selector"),
        ("smi_memory_used_bytes", "'{a=\"1\"}'", 12, "is not a selector"),
        ("scale: 0.001", "scale: 0", 13, "quantities[3].scale: input should be greater than 0"),
        ("scale: 0.001", "scale: .nan", 13, "quantities[3].scale: input should be"),
        ("limit: 1500", "limit: ", 13, "quantities[3].limit: has no value; write one, or remove the field"),
        ("limit: 1500", "limit: much", 13, "quantities[3].limit: input should be a valid number"),
        ("limit: 1500", "limit: 1500, limits: 3", 13, "quantities[3].limits: unknown field; did you mean limit?"),
        ("quantity: activity", "quantity: power", 9, "quantities: none is activity"),
        ("kind: Signals", "kind: Signals\nkind: Signals", 3, "kind: is given twice; first in line 2"),
        ("labels:", "labels: &a", 0, None),
    ],
)  # fmt: skip
def test_signals_file_mistake_raises_with_its_line(
    tmp_path: pathlib.Path, old: str, new: str, line: int, words: str | None
) -> None:
    """The error says what would be right."""
    assert old in GOOD
    path = _write(tmp_path, GOOD.replace(old, new))
    if words is None:
        assert source_named(path) is not None
        return
    with pytest.raises(SignalsError) as raised:
        source_named(path)
    assert any(problem.line == line and words in str(problem) for problem in raised.value.problems), (
        raised.value
    )
    assert str(raised.value).startswith(f"signals table {path} cannot be used")


def test_signals_file_several_mistakes_raise_one_error(tmp_path: pathlib.Path) -> None:
    """With the line of each."""
    text = """\
        apiVersion: gpu-rightsizer.io/v1alpha1
        kind: Signals
        labels: {namespace: n, pod: 7, device: d}
        quantities:
        - {quantity: activity, selector: "up{"}
        - {quantity: activity, selector: up, scale: -1}
        """
    with pytest.raises(SignalsError) as raised:
        source_named(_write(tmp_path, textwrap.dedent(text)))
    assert [problem.line for problem in raised.value.problems] == [3, 5, 6]


@pytest.mark.parametrize("text", ["", "- a", "a: [", "a: *b", "\xff"])
def test_signals_file_other_content_raises(tmp_path: pathlib.Path, text: str) -> None:
    """As a configuration error."""
    path = tmp_path / "signals.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SignalsError, match="signals table"):
        source_named(str(path))


def test_signals_file_missing_raises(tmp_path: pathlib.Path) -> None:
    """With the path and the reason."""
    with pytest.raises(
        ConfigurationError, match=r"signals table file .*nothing\.yaml: cannot be read: No such file"
    ):
        source_named(str(tmp_path / "nothing.yaml"))
