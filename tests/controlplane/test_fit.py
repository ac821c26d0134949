"""Whether pending pods fit, by kube-scheduler's own plugins: what they say, and who is stopped for pods."""

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.controlplane.programs import FIT, find
from tests.controlplane.fit.clusters import cluster_of
from tests.controlplane.fit.differential import compare
from tests.controlplane.fit.scheduler import Question, Scheduler

pytestmark = pytest.mark.controlplane

GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def plugins() -> Iterator[Scheduler]:
    """A process that answers."""
    with Scheduler(find([FIT])["fit"]) as started:
        yield started


def _node(name: str, gpus: int, **spec: Any) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110", GPU: str(gpus)}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {"allocatable": allocatable},
    }


def _pod(name: str, priority: int, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"requests": {GPU: "1"}, "limits": {GPU: "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "research", "uid": f"uid-{name}"},
        "spec": {"containers": [container], "priority": priority, **spec},
    }


_CORDONED = {
    "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    "unschedulable": True,
}
_PENDING = _pod("p", 10)


def test_fit_pod_on_cluster_with_a_free_gpu_fits_there(plugins: Scheduler) -> None:
    """And there is nothing to say of it; of the other node there is."""
    (verdict,) = plugins.ask([Question([_node("a", 1), _node("b", 1, **_CORDONED), _PENDING], "research/p")])
    assert verdict.nodes == {"a": [], "b": ["node(s) were unschedulable"]}
    assert verdict.message == ""


def test_fit_pod_on_full_cluster_gets_the_words_of_the_scheduler(plugins: Scheduler) -> None:
    """And is offered the pod of a lower priority, not that of a higher one."""
    bound = [_pod("low", 1, nodeName="a"), _pod("high", 20, nodeName="b")]
    question = Question([_node("a", 1), _node("b", 1), *bound, _PENDING], "research/p", is_first=True)
    (verdict,) = plugins.ask([question])
    assert verdict.message == f"0/2 nodes are available: 2 Insufficient {GPU}."
    assert verdict.reason == "Unschedulable"
    assert verdict.victims == {"a": {"pods": ["uid-low"], "violations": 0}}
    assert [one["spec"]["schedulerName"] for one in verdict.objects if one["kind"] == "Pod"] == [
        "default-scheduler"
    ] * 3


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"preemptionPolicy": "Never"}, "not eligible due to preemptionPolicy=Never."),
        ({}, "0/1 nodes are available: 1 No preemption victims found for incoming pod."),
    ],
)
def test_fit_pod_that_preempts_nobody_is_told_why(
    plugins: Scheduler, spec: dict[str, Any], words: str
) -> None:
    """As in the condition of a pod that waits."""
    objects = [_node("a", 1), _pod("high", 20, nodeName="a"), _pod("p", 10, **spec)]
    (verdict,) = plugins.ask([Question(objects, "research/p", is_first=True)])
    assert verdict.message == f"0/1 nodes are available: 1 Insufficient {GPU}. preemption: {words}"
    assert verdict.victims == {}


def test_fit_many_clusters_are_answered_in_order(plugins: Scheduler) -> None:
    """Though several are compared at once."""
    questions = [Question([_node(f"n{number}", number % 2), _PENDING], "research/p") for number in range(64)]
    assert [[*one.nodes] for one in plugins.ask(questions)] == [[f"n{number}"] for number in range(64)]


def test_fit_cluster_that_no_api_server_would_accept_is_refused(plugins: Scheduler) -> None:
    """A slip in what makes random clusters is no finding."""
    wrong = _pod("p", 10, restartPolicy="Sometimes")
    with pytest.raises(ValueError, match="Unsupported value"):
        plugins.ask([Question([_node("a", 1), wrong], "research/p", is_first=True)])


def test_fit_random_clusters_are_valid_and_the_same_for_the_same_seed(plugins: Scheduler) -> None:
    """By the API server's own validation."""
    seeds = range(1_000_000, 1_000_200)
    clusters = [cluster_of(seed) for seed in seeds]
    assert clusters == [cluster_of(seed) for seed in seeds]
    verdicts = plugins.ask(Question(one.objects, one.pod, is_first=True) for one in clusters)
    waiting = sum(bool(one.message) for one in verdicts)
    assert waiting > 100  # in most of them there is something to decide


def test_fit_nobody_is_stopped_for_a_pod_that_does_not_fit_then(plugins: Scheduler) -> None:
    """By a plan, and by the extender on the node that it names; `python -m tests.controlplane.fit` does more."""
    cases = list(compare(plugins, range(500)))
    assert [(one.seed, one.features, one.reasons) for one in cases if one.is_in_vain] == []
    assert [(one.seed, one.features, one.against) for one in cases if one.is_named_in_vain] == []
    assert sum(bool(one.stopped) for one in cases) > 100
    assert sum(one.named for one in cases) > 20
