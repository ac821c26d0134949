"""The signals file: metrics of another exporter, and errors with their lines."""

import functools
import json
import pathlib
import re
import textwrap
import urllib.parse
import urllib.request
from collections.abc import Mapping

import pytest

from rightsizer.errors import ConfigurationError, SignalsError
from rightsizer.kube.pod_names import ORDINALS
from rightsizer.model import Slot
from rightsizer.usage.active_replicas import ReplicaQuery
from rightsizer.usage.sources import source_named
from simulator.prometheus import Prometheus
from tests.rightsizer.fakeprometheus import Answer, serving
from tests.rightsizer.metrics import DAY, HOUR, Metrics, near

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


DOTTED = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Signals
labels:
  namespace: [service.namespace, k8s.namespace.name]
  pod: [service.pod, k8s.pod.name]
  device: hw.id
  model: hw.model
  node: k8s.node.name
quantities:
- {quantity: activity, selector: '{"hw.gpu.utilization", "hw.gpu.task"="general"}'}
- {quantity: traffic, selector: '{ "hw.gpu.traffic" }'}
- {quantity: memory, selector: 'memory_usage{"hw.type"="gpu",}'}
- {quantity: power, selector: '{"hw.power", }'}
"""
_DOTTED_NAME = r'"((?:hw|k8s|service)\.[a-z0-9.]+)"'


def _dotted(text: str) -> str:
    return text.replace("_", ".") if text.startswith(("hw_", "k8s_", "service_")) else text


def _as_third(prometheus: Prometheus, form: Mapping[str, str]) -> Answer:
    """The answer of a Prometheus 3 that has names with dots, by one that cannot have them."""
    if "query" not in form:
        return Answer(404, "404 page not found")
    query = form["query"].replace("\\\\.", "_")  # in a regular expression
    for place, name in (
        (rf"(?<=[=~]){_DOTTED_NAME}", '"{}"'),  # a value
        (rf'(?<="\$[12]", ){_DOTTED_NAME}', '"{}"'),  # an argument of label_replace
        (rf"\{{{_DOTTED_NAME}(?:, |(?=\}}))", "{}{{"),  # a metric
        (_DOTTED_NAME, "{}"),  # a label
    ):
        for found in reversed(list(re.finditer(place, query))):
            plain = name.format(found[1].replace(".", "_"))
            query = f"{query[: found.start()]}{plain}{query[found.end() :]}"
    end = "query_range" if "start" in form else "query"
    asked = urllib.parse.urlencode({**form, "query": query}).encode()
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/{end}", asked) as answer:
        body = json.load(answer)
    for series in body["data"]["result"]:
        series["metric"] = {_dotted(name): _dotted(value) for name, value in series["metric"].items()}
    return Answer(body=json.dumps(body))


@pytest.mark.prometheus
def test_signals_file_names_with_dots_are_read(prometheus: Prometheus, tmp_path: pathlib.Path) -> None:
    """As OpenTelemetry writes them and Prometheus 3 keeps them: of metrics, of labels, and in matchers."""
    metrics = Metrics(prometheus)
    given = {
        "namespace": "",
        "UUID": "",
        "modelName": "",
        "hw_id": "7",
        "hw_model": "L4",
        "k8s_node_name": "n1",
    }
    names = {**given, "k8s_namespace_name": metrics.space, "k8s_pod_name": "a-0", "instance": "n1:9400"}
    metrics.write({"hw_gpu_utilization": 0.35}, {**names, "hw_gpu_task": "general"})
    metrics.write({"hw_gpu_utilization": 0.9}, {**names, "hw_gpu_task": "encoder"})
    metrics.write({"hw_gpu_traffic": 0.12, "hw_power": 72.0}, names)
    metrics.write({"memory_usage": 5e9}, {**names, "hw_type": "gpu"})
    pod, path = (metrics.space, "a-0"), _write(tmp_path, DOTTED)
    with serving() as fake:
        fake.respond = functools.partial(_as_third, prometheus)
        signal = metrics.signal(path, url=fake.url)
        (usage,) = signal.usages(DAY, metrics.at)[pod]
        assert (usage.activity_peak, usage.traffic_peak, usage.power_peak_w) == (near(0.35), near(0.12), 72.0)
        assert (usage.memory_peak_bytes, usage.device.uuid, usage.device.model) == (5e9, "7", "L4")
        assert signal.usages(HOUR, metrics.at, of=[pod])[pod][0].activity_peak == near(0.35)
        assert signal.nodes(metrics.at)["n1"].devices == 1
        history = signal.histories({pod: metrics.at - DAY}, DAY, metrics.at, threshold=0.01)[pod]
        assert set(history.slots) == {Slot.BUSY}
        replicas = ReplicaQuery("uid", metrics.space, ORDINALS, {"a-0": metrics.at - DAY})
        assert signal.concurrency([replicas], metrics.at)["uid"].busy[-1] == 1


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("v1alpha1", "v9", 1, "apiVersion: input should be 'gpu-rightsizer.io/v1alpha1'"),
        ("kind: Signals", "kind: Policy", 2, "kind: must be Signals"),
        ("  pod: [kube_pod, pod_name]\n", "", 3, "labels.pod: is missing"),
        ("[kube_pod, pod_name]", "[]", 5, "labels.pod: is empty; name at least one"),
        ("[kube_pod, pod_name]", "['']", 5, "labels.pod[0]: is empty"),
        ("  device: uuid", "  devise: uuid", 6, "labels.devise: unknown field; did you mean device?"),
        ("quantity: power", "quantity: watts", 13, "quantities[3].quantity: input should be 'activity', 'traffic'"),
        ("smi_memory_used_bytes", "sum(x)", 12, "quantities[2].selector: 'sum(x)' is not a selector such as"),
        ("smi_memory_used_bytes", "'x[5m]'", 12, "quantities[2].selector: 'x[5m]' is not a selector"),
        ("smi_memory_used_bytes", "'x{a=1}'", 12, "quantities[2].selector: 'x{a=1}' is not a selector"),
        ("smi_memory_used_bytes", "'{a=\"1\"}'", 12, "is not a selector"),
        ("smi_memory_used_bytes", "'x{\"a.b\"}'", 12, "is not a selector"),
        ("smi_memory_used_bytes", "'{\"x\", \"y\"}'", 12, "is not a selector"),
        ("smi_memory_used_bytes", "'{\"\"}'", 12, "is not a selector"),
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
