"""The ready-made clusters are what they claim to be, at whatever hour they are started."""

import math
from collections import Counter
from pathlib import Path

import pytest

from simulator.gpus.cards import CARDS
from simulator.manifests import labels
from simulator.nodes.devices import GPU_RESOURCE, allocatable
from simulator.spec import Archetype, ClusterSpec, Kind, WorkloadSpec
from simulator.specfile import EXAMPLE, PRESETS, SpecError, load, preset
from simulator.workloads.archetypes import Actor
from simulator.workloads.behavior import activity, truth
from simulator.workloads.draws import DAY_S, HOUR_S

DEMO = preset("demo")
MONDAY_S = 1_795_392_000.0
HOURS = range(0, 7 * 24, 5)

DEMO_IDLE = {
    "alice-notebook",
    "bob-notebook",
    "dave-notebook",
    "debug-shell",
    "embedding-sweep",
    "fraud-model",
    "image-caption",
    "old-demo",
    "render-previews",
    "reranker-old",
    "tutorial",
    "vision-v1",
}
"""Workloads of the demo that have not worked in the last day; the others have."""


def _last_day(spec: WorkloadSpec, seed: int, now_s: float) -> list[bool]:
    """For each device of each replica whether it worked in the last day."""
    start_s = now_s - spec.age_s
    return [
        truth(Actor(seed, spec, ordinal, device, start_s), now_s - DAY_S, now_s).ran
        for ordinal in range(spec.replicas)
        for device in range(spec.gpus)
    ]


@pytest.mark.parametrize("spec", DEMO.workloads, ids=lambda spec: spec.name)
def test_demo_workload_is_idle_or_busy_at_any_hour(spec: WorkloadSpec) -> None:
    """At each hour of a week the intended idle ones have rested for a day and the others have worked in it."""
    for hour in HOURS:
        ran = _last_day(spec, DEMO.seed, MONDAY_S + hour * HOUR_S)
        assert any(ran) == (spec.name not in DEMO_IDLE), hour


def test_demo_partly_used_workloads_are_partly_busy() -> None:
    """Two of eight GPUs work, and two of three replicas."""
    by_name = {spec.name: spec for spec in DEMO.workloads}
    assert _last_day(by_name["moe-finetune"], DEMO.seed, MONDAY_S) == [True] * 2 + [False] * 6
    assert _last_day(by_name["recommender"], DEMO.seed, MONDAY_S) == [True, True, False]


def test_demo_zombies_include_spinning_and_silent() -> None:
    """One spins at 100 %, the other shows 0."""
    by_name = {spec.name: spec for spec in DEMO.workloads}
    shown = [
        activity(Actor(DEMO.seed, by_name[name], 0, 0, MONDAY_S - by_name[name].age_s), MONDAY_S)
        for name in ("render-previews", "embedding-sweep")
    ]
    assert [one.utilization_percent for one in shown] == [100, 0]
    assert not any(one.is_working for one in shown)


def test_demo_covers_every_archetype_kind_and_sharing() -> None:
    """At least 3 nodes, 24 GPUs, 20 workloads; all archetypes and kinds; MIG and time-slicing; three classes."""
    assert len(DEMO.nodes) >= 3
    assert sum(len(node.gpus) for node in DEMO.nodes) >= 24
    assert len(DEMO.workloads) >= 20
    assert {spec.archetype for spec in DEMO.workloads} == set(Archetype)
    assert {spec.kind for spec in DEMO.workloads} == set(Kind)
    assert {spec.priority_class for spec in DEMO.workloads} == {one.name for one in DEMO.priority_classes}
    assert len({spec.namespace for spec in DEMO.workloads}) >= 3
    assert any(gpu.mig for node in DEMO.nodes for gpu in node.gpus)
    assert any(node.replicas > 1 for node in DEMO.nodes)
    assert [spec.name for spec in DEMO.workloads if spec.recorded == 0.5] == ["image-caption"]


@pytest.mark.parametrize("cluster", [preset(name) for name in PRESETS], ids=PRESETS)
def test_preset_workloads_fit_their_nodes(cluster: ClusterSpec) -> None:
    """Each product's nodes have the devices that the workloads selecting it ask for."""
    wanted: Counter[tuple[str, str]] = Counter()
    for spec in cluster.workloads:
        product = spec.node_selector.get("nvidia.com/gpu.product", "")
        wanted[(product, spec.resource)] += spec.gpus * spec.replicas
    for (product, resource), count in wanted.items():
        offered = sum(
            allocatable(node).get(resource, 0)
            for node in cluster.nodes
            if product in {"", labels(node)["nvidia.com/gpu.product"]}
        )
        assert count <= offered, (product, resource)


def test_example_spec_file_loads(tmp_path: Path) -> None:
    """The example in the help loads, into the values that it shows."""
    path = tmp_path / "cluster.yaml"
    path.write_text(EXAMPLE)
    cluster = load(path)
    assert [(node.name, len(node.gpus), node.replicas) for node in cluster.nodes] == [
        ("a", 2, 1),
        ("b", 1, 4),
    ]
    assert cluster.workloads[0].kind is Kind.DEPLOYMENT
    assert cluster.workloads[0].resource == GPU_RESOURCE
    assert all(gpu.card in CARDS for node in cluster.nodes for gpu in node.gpus)


def test_spec_file_with_errors_reports_all_of_them(tmp_path: Path) -> None:
    """Unknown fields, missing ones, wrong types and unknown choices are listed together, with their place."""
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "nodes: [{name: a, gpus: 3, colour: red}]\n"
        "priority_classes: [{name: low, value: many}]\n"
        "workloads: [{kind: Cron, namespace: x, name: y, archetype: zombie, works_s: .inf}]\n"
    )
    with pytest.raises(SpecError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(f"{path} does not describe a cluster:\n")
    for expected in (
        "cluster.nodes[0].gpus: is not a list",
        "cluster.nodes[0].colour: there is no such field; there are name, gpus",
        "cluster.priority_classes[0].value: 'many' is not of type int",
        "cluster.workloads[0].kind: 'Cron' is none of Deployment, StatefulSet, Job, Pod",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes: [", "reading "),
        ("", "cluster: is not a mapping"),
        ("nodes: []", "cluster.workloads: is missing"),
    ],
    ids=["not-yaml", "empty", "incomplete"],
)
def test_spec_file_broken_or_empty_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """Broken and empty files get a message that names the file."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=str(path)) as caught:
        load(path)
    assert problem in str(caught.value)


def test_spec_file_accepts_infinity_and_null(tmp_path: Path) -> None:
    """`works_s: .inf` in a file means that the work never ends, and null that the archetype decides."""
    path = tmp_path / "cluster.yaml"
    path.write_text(EXAMPLE.rstrip("}\n") + ", works_s: .inf, spins: null}\n")
    [spec] = load(path).workloads
    assert spec.works_s == math.inf
    assert spec.spins is None
