"""Which replicas go where there are to be fewer: never one at work, and of the quiet ones those that did least."""

import dataclasses

import pytest

from rightsizer.kinds import row_of
from rightsizer.model import Action, ObjectRef, Pod, Proposal, Scalable, Workload
from rightsizer.planning.victims import COST_ANNOTATION, AtWorkError, select_victims
from tests.rightsizer.build import idle_usage, pod, usages, workload

NAMES = ("w-0", "w-1", "w-2", "w-3")


def _going(item: Workload, replicas: int, *at_work: str, named: tuple[str, ...] = ()) -> list[str]:
    """Those that go, where the first one did most and the last one least."""
    row = row_of(item)
    assert row is not None
    used = usages(
        *((one, (idle_usage(activity_mean=0.04 - int(one.ref.name[-1]) / 100),)) for one in item.pods)
    )
    proposal = Proposal(Action.SCALE_DOWN, 1.0, "", replicas=replicas, pods=named)
    found = select_victims(item, proposal, row, at_work=frozenset(at_work), activity=used)
    return [one.ref.name for one in found]


def _of(kind: str = "Deployment", **annotations: dict[str, str]) -> Workload:
    pods: list[Pod] = [pod(name, annotations=annotations.get(name.replace("-", ""), {})) for name in NAMES]
    return workload(*pods, kind=kind)


def test_victims_idlest_pods_first() -> None:
    """The order of their names says nothing."""
    assert _going(_of(), 2) == ["w-3", "w-2"]
    assert _going(_of(), 3) == ["w-3"]


def test_victims_never_include_an_active_pod() -> None:
    """However little it did before."""
    assert _going(_of(), 2, "w-3") == ["w-2", "w-1"]


@pytest.mark.parametrize(("at_work", "is_refused"), [(2, False), (3, True)])
def test_victims_too_few_idle_pods_raises(at_work: int, is_refused: bool) -> None:
    """Two are to go: with two at work that is just possible."""
    if is_refused:
        with pytest.raises(AtWorkError, match="only 1 were idle"):
            _going(_of(), 2, *NAMES[:at_work])
    else:
        assert _going(_of(), 2, *NAMES[:at_work]) == ["w-3", "w-2"]


@pytest.mark.parametrize(("busy", "is_refused"), [("w-1", False), ("w-2", True), ("w-3", True)])
def test_victims_of_a_statefulset_highest_ordinals_must_be_idle(busy: str, is_refused: bool) -> None:
    """Its controller takes the highest ordinals: where one of those is at work nothing is done, and none is told."""
    if is_refused:
        with pytest.raises(AtWorkError, match=f"{busy} is active"):
            _going(_of("StatefulSet"), 2, busy)
    else:
        assert _going(_of("StatefulSet"), 2, busy) == []


@pytest.mark.parametrize(("busy", "is_refused"), [("w-7", False), ("w-8", True)])
def test_victims_of_a_statefulset_respect_ordinals_start(busy: str, is_refused: bool) -> None:
    """With spec.ordinals.start the last ones are not those whose number is that of the replicas."""
    pods = [pod(f"w-{number}") for number in range(5, 10)]
    item = dataclasses.replace(
        workload(*pods, kind="StatefulSet"), spec=b'{"replicas":5,"ordinals":{"start":5}}'
    )
    if is_refused:
        with pytest.raises(AtWorkError, match="w-8 is active"):
            _going(item, 3, busy)
    else:
        assert _going(item, 3, busy) == []


def test_victims_with_owner_deletion_costs_are_not_set() -> None:
    """Where they said themselves which are to go, we say nothing."""
    assert _going(_of(w1={COST_ANNOTATION: "5"}), 2) == []


@pytest.mark.parametrize(
    ("costs", "busy", "is_refused"),
    [
        ({"w0": "-100"}, "w-0", True),
        ({"w0": "5"}, "w-1", True),  # three that cost nothing, of which two go
        ({"w0": "5", "w1": "5"}, "w-1", False),
        ({"w0": "-5", "w1": "-4"}, "w-2", False),
        ({"w0": "-5", "w1": "-4", "w2": "+1", "w3": "none"}, "w-2", False),
        ({"w0": "-5", "w1": "-4", "w2": "-10"}, "w-2", True),
    ],
)
def test_victims_with_owner_costs_on_active_pod_raises(
    costs: dict[str, str], busy: str, is_refused: bool
) -> None:
    """Nor where it might be among those of one cost."""
    item = _of("Deployment", **{name: {COST_ANNOTATION: cost} for name, cost in costs.items()})
    if is_refused:
        with pytest.raises(AtWorkError, match=f"decide which go first, and {busy} is active"):
            _going(item, 2, busy)
    else:
        assert _going(item, 2, busy) == []


def test_victims_unready_pod_goes_before_costs() -> None:
    """A ReplicaSet deletes those first, whatever was said of them."""
    pods = [pod("w-0", annotations={COST_ANNOTATION: "9"}, is_ready=False), *map(pod, NAMES[1:])]
    with pytest.raises(AtWorkError, match="w-0 is active"):
        _going(workload(*pods), 3, "w-0")


@pytest.mark.parametrize(("busy", "is_refused"), [("w-0", False), ("w-3", True)])
def test_victims_of_a_raycluster_named_pods_must_be_idle(busy: str, is_refused: bool) -> None:
    """They go and no others, so that it is no help that as many others are quiet."""
    item = dataclasses.replace(_of(), ref=ObjectRef("ray.io/v1", "RayCluster", "research", "w", "uid-w"))
    if is_refused:
        with pytest.raises(AtWorkError, match="w-3 is active"):
            _going(item, 3, busy, named=("w-3",))
    else:
        assert _going(item, 3, busy, named=("w-3",)) == []


def test_victims_of_unknown_kind_all_pods_must_be_idle() -> None:
    """Of a kind that only its scale is known of."""
    ref = ObjectRef("apps.kruise.io/v1alpha1", "CloneSet", "research", "w", "uid-w")
    item = dataclasses.replace(_of(), ref=ref, scalable=Scalable("clonesets", ("spec", "replicas")))
    assert _going(item, 2) == []
    with pytest.raises(AtWorkError, match="the replicas that a CloneSet removes are unknown, and w-0"):
        _going(item, 2, "w-0")
