"""Which replicas go where there are to be fewer: never one at work, and of the quiet ones those that did least."""

import pytest

from rightsizer.model import Pod, Workload
from rightsizer.steering import COST_ANNOTATION, AtWorkError, pods_to_go
from rightsizer.workloads import row_of
from tests.rightsizer.build import idle_usage, pod, usages, workload

NAMES = ("w-0", "w-1", "w-2", "w-3")


def _going(item: Workload, replicas: int, *at_work: str) -> list[str]:
    """Those that go, where `w-0` did most and the last one least."""
    row = row_of(item)
    assert row is not None
    used = usages(
        *((one, (idle_usage(activity_mean=0.04 - int(one.ref.name[-1]) / 100),)) for one in item.pods)
    )
    found = pods_to_go(item, replicas, row, at_work=frozenset(at_work), activity=used)
    return [one.ref.name for one in found]


def _of(kind: str = "Deployment", **annotations: dict[str, str]) -> Workload:
    pods: list[Pod] = [pod(name, annotations=annotations.get(name.replace("-", ""), {})) for name in NAMES]
    return workload(*pods, kind=kind)


def test_those_that_did_least_go_first() -> None:
    """The order of their names says nothing."""
    assert _going(_of(), 2) == ["w-3", "w-2"]
    assert _going(_of(), 3) == ["w-3"]


def test_one_at_work_never_goes() -> None:
    """However little it did before."""
    assert _going(_of(), 2, "w-3") == ["w-2", "w-1"]


@pytest.mark.parametrize(("at_work", "is_refused"), [(2, False), (3, True)])
def test_where_too_few_are_quiet_nobody_goes(at_work: int, is_refused: bool) -> None:
    """Two are to go: with two at work that is just possible."""
    if is_refused:
        with pytest.raises(AtWorkError, match="only 1 were quiet"):
            _going(_of(), 2, *NAMES[:at_work])
    else:
        assert _going(_of(), 2, *NAMES[:at_work]) == ["w-3", "w-2"]


@pytest.mark.parametrize(("busy", "is_refused"), [("w-1", False), ("w-2", True), ("w-3", True)])
def test_of_a_stateful_set_the_tail_decides(busy: str, is_refused: bool) -> None:
    """Its controller takes the highest ordinals: where one of those is at work nothing is done, and none is told."""
    if is_refused:
        with pytest.raises(AtWorkError, match=f"{busy} of them is at work"):
            _going(_of("StatefulSet"), 2, busy)
    else:
        assert _going(_of("StatefulSet"), 2, busy) == []


def test_costs_of_its_people_are_left() -> None:
    """Where they said themselves which are to go, we say nothing."""
    assert _going(_of(w1={COST_ANNOTATION: "5"}), 2) == []
