"""Provenance: only series of the exporter on a pod's node say anything about the pod."""

import datetime
import pathlib
from typing import Any

import pytest

from rightsizer.errors import EvidenceIncomplete
from rightsizer.kube.pod_names import ORDINALS
from rightsizer.model import Address, AddressTable, BoardLevel, PodKey, Slot, Usages, Whereabouts
from rightsizer.usage.active_replicas import ReplicaQuery
from rightsizer.usage.exporter_counters import (
    DEVICE_BUSY,
    GAPS,
    POD_BUSY,
    POD_MEMORY,
    POD_TRAFFIC,
    UNATTRIBUTED,
)
from rightsizer.usage.provenance import Provenance, ScrapeTarget, find_provenance
from rightsizer.usage.recording_rules import RecordingRules
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import (
    A100,
    CLOCK,
    COPY,
    DAY,
    ENGINE,
    HOUR,
    MEMORY,
    POWER,
    UTIL,
    Metrics,
    Value,
    idle,
    near,
    steadily,
)
from tests.rightsizer.relay import Relay

NODES = ("n1", "n2", "n3")
EXPORTERS = {"n1": "10.0.1.1:9400", "n2": "10.0.2.1:9400", "n3": "10.0.3.1:9400"}
TENANT = "10.0.2.66:8080"
ZERO, MINUTE = datetime.timedelta(), datetime.timedelta(minutes=1)
BUSY = steadily(54)
"""A counter of a GPU that works nine tenths of the time."""


def _addresses() -> AddressTable:
    """An exporter on each node, and a pod of a tenant on the second."""
    table = AddressTable()
    for number, node in enumerate(NODES, 1):
        table.add("monitoring", node, f"192.168.0.{number}", [f"10.0.{number}.1"])
    table.add("tenant", "n2", "192.168.0.2", ["10.0.2.66", "fd00::66", "fd00::ab"])
    return table


def _whereabouts(*pods: PodKey) -> Whereabouts:
    """GPU pods, one on each node."""
    keys = pods or tuple(("team", f"p-{node}") for node in NODES)
    return Whereabouts(dict(zip(keys, NODES, strict=False)), _addresses())


def _targets(*more: ScrapeTarget) -> list[ScrapeTarget]:
    return [*(ScrapeTarget("gpu-exporter", instance, 8) for instance in EXPORTERS.values()), *more]


def _found(*more: ScrapeTarget, given: tuple[str, ...] = ()) -> Provenance:
    return find_provenance(_targets(*more), _whereabouts(), given)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        pytest.param("10.0.2.66", ("tenant", "n2"), id="pod"),
        pytest.param("fd00::66", ("tenant", "n2"), id="pod-ipv6"),
        pytest.param("192.168.0.3", ("", "n3", True), id="node-address"),
        pytest.param("n3", ("", "n3"), id="node-name"),
        pytest.param("10.9.9.9", None, id="nobody"),
        pytest.param("", None, id="empty"),
    ],
)
def test_addresses_are_found_by_pod_and_node(address: str, found: tuple[Any, ...] | None) -> None:
    """Also of pods that share their node's address."""
    table = _addresses()
    table.add("kube-system", "n3", "192.168.0.3", ["192.168.0.3"])
    assert table.find(address) == (None if found is None else Address(*found))
    assert table.has_pod_on_host(["monitoring", "kube-system"], "n3")
    assert not table.has_pod_on_host(["monitoring", "absent"], "n3")
    assert not table.has_pod_on_host(["kube-system"], "n2")


def test_addresses_of_several_nodes_are_nobodys() -> None:
    """As of nodes behind one proxy."""
    table = _addresses()
    for node in NODES:
        table.add("team", node, "127.0.0.1", [])
    assert table.find("127.0.0.1") is None
    assert table.find("n2") == Address("", "n2")


@pytest.mark.parametrize(
    ("pod", "job", "instance", "is_evidence"),
    [
        pytest.param(("team", "p-n1"), "gpu-exporter", EXPORTERS["n1"], True, id="own-node"),
        pytest.param(("team", "p-n1"), "gpu-exporter", EXPORTERS["n2"], False, id="another-nodes-exporter"),
        pytest.param(("team", "gone"), "gpu-exporter", EXPORTERS["n2"], True, id="pod-is-gone"),
        pytest.param(("team", "p-n2"), "gpu-exporter", TENANT, False, id="tenant-in-the-exporters-job"),
        pytest.param(("team", "p-n1"), "tenant", TENANT, False, id="tenant-in-its-own-job"),
        pytest.param(("team", "p-n1"), "tenant", "10.9.9.9:1", False, id="another-job-and-nobody"),
        pytest.param(("team", "p-n1"), "gpu-exporter", "10.9.9.9:9400", True, id="restarted-exporter"),
        pytest.param(("team", "p-n2"), "gpu-exporter", "192.168.0.1:9400", False, id="another-nodes-address"),
        pytest.param(("team", "p-n2"), "gpu-exporter", "[fd00::66]:80", False, id="tenant-by-ipv6"),
        pytest.param(("team", "p-n2"), "gpu-exporter", "fd00::ab", False, id="tenant-by-ipv6-without-port"),
        pytest.param(("team", "p-n1"), "", "", True, id="merged-by-the-query"),
    ],
)
def test_provenance_accepts_series_of_the_exporter_on_the_pods_node(
    pod: PodKey, job: str, instance: str, *, is_evidence: bool
) -> None:
    """A series counts only if its target is an exporter, or is gone, and not on another node."""
    tenant = ScrapeTarget("tenant", TENANT, 3)
    assert _found(tenant).accepts(pod, job, instance) is is_evidence
    assert _found(tenant, given=("monitoring",)).accepts(pod, job, instance) is is_evidence


def test_provenance_node_names_count_unless_the_exporters_given_have_ports() -> None:
    """With `labelmap` a pod's label `instance` takes the place of its address, but a label cannot hold a port."""
    named = [ScrapeTarget("relabelled", node, 8) for node in NODES]
    fake, unknown = ScrapeTarget("tenant", "n1", 3), ScrapeTarget("gpu-exporter", "nothing", 3)
    for given, counts in (((), True), (("monitoring",), False)):
        assert find_provenance(named, _whereabouts(), given).accepts(("team", "p-n1"), "relabelled", "n1")
        found = _found(fake, unknown, given=given)
        assert set(found.ignored) == (set() if counts else {fake, unknown})
        assert found.accepts(("team", "p-n1"), "gpu-exporter", "n1") is counts
        assert found.accepts(("team", "p-n1"), "tenant", "n1") is counts


def test_provenance_pod_without_a_node_has_no_evidence() -> None:
    """Nobody can know its device yet."""
    found = find_provenance(_targets(), Whereabouts({("t", "a"): "n1", ("t", "new"): ""}, _addresses()), ())
    assert found.accepts(("t", "a"), "gpu-exporter", EXPORTERS["n1"])
    assert not found.accepts(("t", "new"), "gpu-exporter", EXPORTERS["n1"])


def test_provenance_ignored_targets_are_counted_and_excluded() -> None:
    """In words for people, and in the matchers of every query."""
    targets = ScrapeTarget("gpu-exporter", TENANT, 12), ScrapeTarget("other", "10.9.9.9:1", 5)
    found = _found(*targets, given=("monitoring",))
    assert found.series == 17
    assert list(found.words()) == [
        f"17 GPU series of 2 targets ignored: not from an exporter ({TENANT}, 10.9.9.9:1)"
    ]
    assert found.matchers == ('job="gpu-exporter"', 'instance!=""', f'instance!="{TENANT}"')


def test_provenance_words_name_three_of_many_ignored_targets() -> None:
    """The others are only counted."""
    targets = [ScrapeTarget("other", f"10.9.9.{number}:1", 1) for number in range(4)]
    (words,) = _found(*targets, given=("monitoring",)).words()
    assert words.endswith("4 targets ignored: not from an exporter (10.9.9.0:1, 10.9.9.1:1, 10.9.9.2:1, ...)")


def test_provenance_exporters_on_half_of_the_nodes_are_found() -> None:
    """On fewer, other pods with addresses could be taken for them."""
    pods = {("team", f"p-{number}"): f"n{number}" for number in range(1, 5)}
    targets = [ScrapeTarget("gpu-exporter", EXPORTERS[node], 8) for node in ("n1", "n2")]
    assert find_provenance(targets, Whereabouts(pods, _addresses()), ()).namespaces == {"monitoring"}
    assert find_provenance(targets[:1], Whereabouts(pods, _addresses()), ()).problem


def test_provenance_many_ignored_targets_do_not_lengthen_queries() -> None:
    """Series of those that are not excluded by name are left out when they are read."""
    table = _addresses()
    table.add("tenant", "n2", "", [f"10.7.{number // 250}.{number % 250}" for number in range(3000)])
    targets = [
        ScrapeTarget("gpu-exporter", f"10.7.{number // 250}.{number % 250}", 1) for number in range(3000)
    ]
    whereabouts = Whereabouts(_whereabouts().pods, table)
    found = find_provenance(_targets(*targets), whereabouts, ())
    assert len(found.ignored) == 3000
    assert len(found.matchers) == 2
    assert sum(map(len, found.matchers)) < 2_000
    assert not found.accepts(("team", "p-n2"), "gpu-exporter", "10.7.11.249:80")


def test_provenance_targets_that_are_nobodys_address_count_unless_namespaces_are_given() -> None:
    """An exporter behind another instance label is not lost because some other target resolves."""
    renamed = ScrapeTarget("federate", "exporter-of-n3", 8)
    assert _found(renamed).accepts(("team", "p-n3"), "federate", "exporter-of-n3")
    assert not _found(renamed, given=("monitoring",)).accepts(("team", "p-n3"), "federate", "exporter-of-n3")


def test_provenance_given_namespaces_are_the_only_ones() -> None:
    """They need no majority, and none of theirs is an error."""
    targets = [ScrapeTarget("gpu-exporter", TENANT, 8), ScrapeTarget("gpu-exporter", EXPORTERS["n1"], 8)]
    found = find_provenance(targets, _whereabouts(), ("monitoring",))
    assert [one.instance for one in found.ignored] == [TENANT]
    with pytest.raises(EvidenceIncomplete, match="no GPU series comes from a pod in gpu-operator"):
        find_provenance(targets, _whereabouts(), ("gpu-operator",))


@pytest.mark.parametrize("given", [(), ("monitoring",)])
def test_provenance_pod_on_its_nodes_network_is_no_exporter(given: tuple[str, ...]) -> None:
    """Unless exporters use it, too: those of the node, or all."""
    job, forged = "tenant", "192.168.0.2:8080"
    fake = ScrapeTarget(job, forged, 3)
    found = _found(fake, given=given)
    assert found.ignored == (fake,)
    assert not found.accepts(("team", "p-n2"), job, forged)
    assert not found.accepts(("team", "p-n2"), "gpu-exporter", forged)
    table = _addresses()
    table.add("monitoring", "n2", "192.168.0.2", ["192.168.0.2"])
    own = ScrapeTarget("gpu-exporter", "192.168.0.2:9400", 8)
    found = find_provenance(_targets(own), Whereabouts(_whereabouts().pods, table), given)
    assert found.accepts(("team", "p-n2"), "gpu-exporter", own.instance)
    assert not found.accepts(("team", "p-n3"), "gpu-exporter", "192.168.0.3:9400")


def test_provenance_exporters_on_their_nodes_network_count_without_a_name() -> None:
    """As a service of each node; a namespace that is given has to have them."""
    targets = [ScrapeTarget("gpu-exporter", f"192.168.0.{number}:9400", 8) for number in (1, 2, 3)]
    found = find_provenance(targets, _whereabouts(), ())
    assert found.namespaces == {""}
    assert not found.ignored
    assert found.accepts(("team", "p-n2"), "gpu-exporter", "192.168.0.2:9400")
    with pytest.raises(EvidenceIncomplete, match="targets are in: nodes"):
        find_provenance(targets, _whereabouts(), ("monitoring",))


def test_provenance_unknown_if_instances_are_no_addresses() -> None:
    """As behind a federating server that renames them: every target counts, and doctor warns."""
    found = find_provenance([ScrapeTarget("federate", "prometheus:9090", 9)], _whereabouts(), ())
    assert (found.matchers, found.ignored) == ((), ())
    assert found.accepts(("team", "p-n1"), "any", "any")
    assert "no address of a pod or node" in found.problem


def test_provenance_targets_on_few_gpu_nodes_are_not_taken_for_exporters() -> None:
    """A pod of a tenant is the only known target on one of three nodes: every target counts, and doctor warns."""
    targets = [ScrapeTarget("federate", "prometheus:9090", 9), ScrapeTarget("tenant", TENANT, 9)]
    found = find_provenance(targets, _whereabouts(), ())
    assert (found.namespaces, found.matchers, found.ignored) == (frozenset(), (), ())
    assert found.problem


def test_provenance_targets_on_nodes_without_gpu_pods_outnumber_no_exporter() -> None:
    """A tenant with a scraped pod on every other node of the cluster cannot replace the exporters."""
    table = _addresses()
    others = [ScrapeTarget("gpu-exporter", f"10.8.0.{number}:80", 8) for number in range(9)]
    for number in range(9):
        table.add("tenant", f"cpu-{number}", "", [f"10.8.0.{number}"])
    found = find_provenance(_targets(*others), Whereabouts(_whereabouts().pods, table), ())
    assert found.namespaces == {"monitoring"}
    assert found.ignored == tuple(others)


def test_provenance_second_namespace_on_most_nodes_is_doubtful() -> None:
    """Whether it holds exporters cannot be known, and which flag says so is printed."""
    table = _addresses()
    others = [ScrapeTarget("gpu-exporter", f"10.0.{number}.99:9400", 8) for number in (1, 2)]
    for number in (1, 2):
        table.add("tenant", f"n{number}", "", [f"10.0.{number}.99"])
    found = find_provenance(_targets(*others), Whereabouts(_whereabouts().pods, table), ())
    assert found.ignored == ()
    assert "monitoring and tenant" in found.doubt
    assert "--exporter-namespace" in next(found.words())
    named = find_provenance(_targets(*others), Whereabouts(_whereabouts().pods, table), ("monitoring",))
    assert {one.instance for one in named.ignored} == {one.instance for one in others}
    assert not named.doubt


@pytest.mark.parametrize("given", [(), ("monitoring",)], ids=["found", "given"])
def test_provenance_cluster_is_that_of_exporters_whatever_others_say(given: tuple[str, ...]) -> None:
    """If a target of a tenant in their job counted, series of another cluster would be evidence."""
    theirs = ScrapeTarget("gpu-exporter", TENANT, 8, "theirs")
    found = _found(theirs, given=given)
    assert found.cluster == ""
    assert found.is_foreign("theirs")


# --- on a real Prometheus


@pytest.mark.prometheus
def test_provenance_costs_no_query(prometheus: Prometheus) -> None:
    """However many devices and targets there are."""
    metrics, whereabouts = _fleet(prometheus)
    pods = whereabouts.pods.keys()
    asked = []
    for known in (None, whereabouts):
        with Relay(prometheus.url) as relay:
            signal = metrics.signal(url=relay.url)
            signal.expect(pods, pods, known)
            signal.usages(DAY, metrics.at)
            asked.append(len(relay.asked))
    assert asked[1] == asked[0]


def _fleet(prometheus: Prometheus) -> tuple[Metrics, Whereabouts]:
    metrics = Metrics(prometheus)
    pods = tuple((metrics.space, f"p-{node}") for node in NODES)
    for (_, pod), node in zip(pods, NODES, strict=True):
        metrics.write(idle(), pod=pod, instance=EXPORTERS[node], Hostname=node)
    return metrics, _whereabouts(*pods)


def _usages(metrics: Metrics, whereabouts: Whereabouts) -> tuple[Usages, tuple[str, ...]]:
    signal = metrics.signal()
    pods = whereabouts.pods.keys()
    signal.expect(pods, pods, whereabouts)
    return signal.usages(DAY, metrics.at), signal.ignored(metrics.at).words


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"job": "tenant"}, id="own-job"),
        pytest.param({}, id="exporters-job"),
        pytest.param({"cluster": "theirs"}, id="another-cluster"),
        pytest.param({"UUID": "GPU-more"}, id="another-device"),
    ],
)
def test_usages_series_of_a_tenants_pod_change_nothing(
    prometheus: Prometheus, labels: dict[str, str]
) -> None:
    """Neither activity nor coverage nor devices of a pod, nor does another cluster's label end the plan."""
    metrics, whereabouts = _fleet(prometheus)
    before, words = _usages(metrics, whereabouts)
    assert words == ()
    for pod in ("p-n1", "p-n2"):
        metrics.write({UTIL: 99, ENGINE: 0.99}, labels, pod=pod, instance=TENANT)
    after, words = _usages(metrics, whereabouts)
    assert after == before
    assert "4 GPU series of 1 target ignored" in words[0]


@pytest.mark.prometheus
def test_queries_name_only_jobs_of_exporters(prometheus: Prometheus) -> None:
    """Also those that do not keep the target: a device that only another job has is no node's."""
    metrics, whereabouts = _fleet(prometheus)
    invented: dict[str, Any] = {"job": "tenant", "instance": TENANT, "Hostname": "n1"}
    metrics.write(idle(), **invented, UUID="GPU-invented")
    metrics.write(idle(), **invented, UUID="GPU-elsewhere", cluster="theirs")
    signal = metrics.signal()
    signal.expect(whereabouts.pods.keys(), whereabouts.pods.keys(), whereabouts)
    assert signal.nodes(metrics.at)["n1"].devices == 1


@pytest.mark.prometheus
def test_usages_exporter_that_names_pods_of_other_nodes_is_ignored(prometheus: Prometheus) -> None:
    """Who takes one node over says nothing about pods of another."""
    metrics, whereabouts = _fleet(prometheus)
    before, _ = _usages(metrics, whereabouts)
    metrics.write({UTIL: 99}, pod="p-n1", instance=EXPORTERS["n2"])
    after, words = _usages(metrics, whereabouts)
    assert after == before
    assert words == (f"GPU series ignored: an exporter on another node names {metrics.space}/p-n1",)


@pytest.mark.prometheus
def test_usages_counters_of_many_targets_of_a_tenant_make_no_busy_pod_idle(prometheus: Prometheus) -> None:
    """One pod with many ports is more targets than a query can exclude by name; dcgm-exporter has no counters."""
    metrics, known = _fleet(prometheus)
    device = {"UUID": "GPU-shared", "Hostname": "n2"}
    pods = {**known.pods, **{(metrics.space, name): "n2" for name in ("victim", "other")}}
    for name in ("victim", "other"):
        metrics.write(idle(**{UTIL: 90}), device, pod=name, instance=EXPORTERS["n2"])
    whereabouts = Whereabouts(pods, known.addresses)
    before, _ = _usages(metrics, whereabouts)
    victim = (metrics.space, "victim")

    def history() -> bytes:
        signal = metrics.signal()
        signal.expect(pods.keys(), pods.keys(), whereabouts)
        return bytes(
            signal.histories({victim: metrics.at - DAY}, DAY, metrics.at, threshold=0.01)[victim].slots
        )

    assert set(history()) == {Slot.BUSY}
    for port in range(8000, 8150):
        metrics.write({UTIL: 0}, pod="x", namespace="tenant", instance=f"10.0.2.66:{port}", since=HOUR)
    forged = {**device, "instance": "10.0.2.66:8149"}
    for name in ("victim", "other"):
        metrics.write({POD_BUSY: 1}, forged, pod=name)
    metrics.write({DEVICE_BUSY: steadily(54), GAPS: 0}, forged, namespace="", modelName="")
    after, words = _usages(metrics, whereabouts)
    assert "of 150 targets ignored" in words[0]
    assert after == before
    assert after[victim][0].activity_peak == near(0.9)
    assert set(history()) == {Slot.BUSY}


def _write_counters(metrics: Metrics, node: str, device: str, busy_a_minute: dict[str, float]) -> None:
    """What gpu-exporter counts on a device, by pod."""
    labels = {"UUID": device, "Hostname": node, "instance": EXPORTERS[node]}
    for pod, seconds in busy_a_minute.items():
        busy, traffic = steadily(seconds), steadily(seconds / 2)
        metrics.write({POD_BUSY: busy, POD_TRAFFIC: traffic, POD_MEMORY: 1_000}, labels, pod=pod)
    busy = steadily(sum(busy_a_minute.values()))
    metrics.write({DEVICE_BUSY: busy, GAPS: 0, UNATTRIBUTED: 0}, labels, namespace="", modelName="")


def _fleet_with_counters(prometheus: Prometheus) -> tuple[Metrics, Whereabouts]:
    """An idle GPU; one that an idle and a busy pod share; one that is busy but not for its pod; replicas in turn."""
    metrics = Metrics(prometheus)
    nodes = {"p-n1": "n1", "quiet": "n2", "loud": "n2", "puzzle": "n3", "db-0": "n3", "db-1": "n3"}
    devices = {pod: "GPU-shared" if node == "n2" else f"GPU-{pod}" for pod, node in nodes.items()}
    for pod, node in nodes.items():
        busy = 90 if pod in {"quiet", "loud", "puzzle"} else 0
        labels = {"UUID": devices[pod], "Hostname": node, "instance": EXPORTERS[node]}
        is_lost = pod == "db-0"  # its scrape, half an hour ago
        metrics.write(idle(**{UTIL: busy}), labels, pod=pod, until=30 * MINUTE if is_lost else ZERO)
        if is_lost:
            metrics.write(idle(**{UTIL: busy}), labels, pod=pod, since=25 * MINUTE)
    _write_counters(metrics, "n1", "GPU-p-n1", {"p-n1": 0})
    _write_counters(metrics, "n2", "GPU-shared", {"quiet": 0, "loud": 54})
    _write_counters(metrics, "n3", "GPU-puzzle", {"puzzle": 0})
    return metrics, Whereabouts({(metrics.space, pod): node for pod, node in nodes.items()}, _addresses())


def _answers(metrics: Metrics, whereabouts: Whereabouts) -> dict[str, object]:
    """Whatever is asked of the exporters' series."""
    signal, at, pods = metrics.signal(exporter_namespaces=("monitoring",)), metrics.at, whereabouts.pods
    signal.expect(pods.keys(), pods.keys(), whereabouts)
    starts = dict.fromkeys(pods, at - DAY)
    replicas = ReplicaQuery("uid", metrics.space, ORDINALS, {f"db-{n}": at - DAY for n in (0, 1)})
    usages = signal.usages(DAY, at)
    shared = [(metrics.space, name) for name in ("quiet", "loud")]
    return {
        "usages": usages,
        "activity": signal.activity(HOUR, at, with_coverage=True),
        "histories": signal.histories(starts, DAY, at, threshold=0.01),
        "levels": signal.work_levels(starts, DAY, at, threshold=0.01),
        "replicas": signal.concurrency([replicas], at),
        "profiles": signal.profiles(DAY, at, usages=usages, shared=shared),
        "nodes": signal.nodes(at),
        "begins": signal.begins(5 * DAY, at),
        "series": signal.series(at),
    }


@pytest.mark.prometheus
@pytest.mark.parametrize("targets", ["silent", "many"])
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({UTIL: 99, ENGINE: 0.99, COPY: 80, MEMORY: 79_000, POWER: 650}, id="at-work"),
        pytest.param({UTIL: 0, COPY: 0, POWER: 60, POD_BUSY: 1, POD_TRAFFIC: 1}, id="idle"),
        pytest.param({POD_BUSY: BUSY, POD_TRAFFIC: BUSY, POD_MEMORY: 79_000}, id="busy-by-counters"),
        pytest.param({DEVICE_BUSY: 1, GAPS: BUSY, UNATTRIBUTED: BUSY}, id="unattributed-work"),
        pytest.param({DEVICE_BUSY: BUSY, GAPS: 0}, id="work-of-the-device"),
    ],
)
def test_answers_are_the_same_whatever_a_tenants_target_in_the_exporters_job_exposed(
    prometheus: Prometheus, forged: dict[str, Value], targets: str
) -> None:
    """It exposes nothing while targets are sought; or it is more targets than queries can exclude by name."""
    metrics, whereabouts = _fleet_with_counters(prometheus)
    before = _answers(metrics, whereabouts)
    instance, until = "10.0.2.66:8149", 10 * MINUTE if targets == "silent" else ZERO
    for port in range(8000, 8150) if targets == "many" else ():
        metrics.write({UTIL: 0}, pod="x", namespace="tenant", instance=f"10.0.2.66:{port}", since=HOUR)
    for device in ("GPU-p-n1", "GPU-shared", "GPU-puzzle", "GPU-db-0", "GPU-db-1"):
        of_device = bool({DEVICE_BUSY, GAPS} & forged.keys())
        for pod in ("",) if of_device else ("p-n1", "quiet", "loud", "puzzle", "db-0", "db-1", "ghost"):
            where = {
                "UUID": device,
                "instance": instance,
                "Hostname": "n2",
                "namespace": pod and metrics.space,
            }
            metrics.write(forged, where, pod=pod, until=until)
    old = {"pod": "x", "namespace": "tenant", "instance": instance}
    metrics.write({UTIL: 0, MEMORY: 0}, old, since=6 * DAY, until=until or HOUR, step_s=240)
    assert _answers(metrics, whereabouts) == before


@pytest.mark.prometheus
def test_series_for_autoscalers_are_those_of_exporters_jobs(prometheus: Prometheus) -> None:
    """With what lasts: the addresses of other targets change."""
    metrics, whereabouts = _fleet(prometheus)
    metrics.write({UTIL: 99}, pod="p-n1", instance=TENANT)
    signal = metrics.signal(exporter_namespaces=("monitoring",))
    signal.expect(whereabouts.pods.keys(), whereabouts.pods.keys(), whereabouts)
    found = signal.series(metrics.at)
    assert found is not None
    assert found.matchers == (f'test="{metrics.space}"', f'job="{metrics.space}"', 'instance!=""')


@pytest.mark.prometheus
def test_nodes_memory_that_a_tenant_invents_hides_no_devices_without_it(prometheus: Prometheus) -> None:
    """A metric of activity is counted for devices that no exporter has the memory of."""
    metrics, pods = Metrics(prometheus), {}
    for node in NODES:
        pods[metrics.space, f"p-{node}"] = node
        values = {UTIL: 0, **({MEMORY: 1} if node == "n3" else {})}
        metrics.write(values, pod=f"p-{node}", instance=EXPORTERS[node], Hostname=node)
    for port in range(8000, 8150):
        for node in ("n1", "n2"):
            forged = {"instance": f"10.0.2.66:{port}", "Hostname": node}
            metrics.write({MEMORY: 1}, forged, pod=f"p-{node}", since=HOUR)
    signal = metrics.signal()
    signal.expect(pods.keys(), pods.keys(), Whereabouts(pods, _addresses()))
    assert {node: one.devices for node, one in signal.nodes(metrics.at).items()} == dict.fromkeys(NODES, 1)


@pytest.mark.prometheus
@pytest.mark.parametrize("ports", [1, 150])
def test_counters_of_a_tenant_make_no_gpu_exporter_of_others(prometheus: Prometheus, ports: int) -> None:
    """Those are dcgm-exporters; of many targets some are not excluded by name."""
    metrics, whereabouts = _fleet(prometheus)
    for port in range(8000, 8000 + ports):
        forged = {UTIL: 0, POD_BUSY: 1, DEVICE_BUSY: 1}
        metrics.write(forged, pod="x", namespace="tenant", instance=f"10.0.2.66:{port}", since=HOUR)
    signal = metrics.signal("gpu-exporter")
    signal.expect(whereabouts.pods.keys(), whereabouts.pods.keys(), whereabouts)
    with pytest.raises(EvidenceIncomplete, match=f"but not {DEVICE_BUSY}"):
        signal.usages(DAY, metrics.at)


@pytest.mark.prometheus
def test_usages_counters_of_an_exporter_that_restarted_add_up(prometheus: Prometheus) -> None:
    """It counts from zero at another address."""
    metrics, known = _fleet(prometheus)
    half = DAY / 2
    device = {"UUID": "GPU-shared", "Hostname": "n2"}
    pods = {**known.pods, (metrics.space, "one"): "n2", (metrics.space, "two"): "n2"}
    for pod in ("one", "two"):
        metrics.write(idle(**{UTIL: 20}), device, pod=pod, instance=EXPORTERS["n2"])
        for instance, since, until in (("10.0.2.200:9400", DAY, half), (EXPORTERS["n2"], half, ZERO)):
            where = {**device, "instance": instance}
            metrics.write({POD_BUSY: steadily(6)}, where, pod=pod, since=since, until=until)
    for instance, since, until in (("10.0.2.200:9400", DAY, half), (EXPORTERS["n2"], half, ZERO)):
        where = {**device, "instance": instance, "namespace": "", "modelName": ""}
        metrics.write({DEVICE_BUSY: steadily(12), GAPS: 0}, where, since=since, until=until)
    found, _ = _usages(metrics, Whereabouts(pods, known.addresses))
    (usage,) = found[metrics.space, "one"]
    assert usage.activity_mean == near(0.1, abs=0.002)


@pytest.mark.prometheus
@pytest.mark.parametrize("pod", ["p-n1", "x"])
def test_usages_cluster_that_only_a_target_that_is_gone_names_ends_no_plan(
    prometheus: Prometheus, pod: str
) -> None:
    """A tenant's scraped pod that soon ends, in the exporters' job, could name another cluster for ever."""
    metrics, whereabouts = _fleet(prometheus)
    before, _ = _usages(metrics, whereabouts)
    counted = metrics.signal().nodes(metrics.at)
    gone = {"instance": "10.0.2.99:80", "cluster": "theirs", "Hostname": "n1"}
    metrics.write({UTIL: 0, MEMORY: 0}, gone, pod=pod, UUID="GPU-x", since=HOUR, until=HOUR / 10)
    after, _ = _usages(metrics, whereabouts)
    assert after == before
    signal = metrics.signal()
    signal.expect(whereabouts.pods.keys(), whereabouts.pods.keys(), whereabouts)
    assert signal.nodes(metrics.at) == counted


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("recorded", "forged", "labels"),
    [
        pytest.param(DAY, 0.99, {}, id="without-a-target"),
        pytest.param(DAY, 0.99, {"instance": TENANT}, id="of-its-own-target"),
        pytest.param(6 * HOUR, 0, {"instance": TENANT}, id="while-rules-are-young"),
        pytest.param(
            6 * HOUR,
            0,
            {"instance": "10.99.0.1:9400", "cluster": "theirs"},
            id="another-clusters-while-young",
        ),
    ],
)
def test_usages_names_of_recorded_series_that_a_target_exposes_alone_change_nothing(
    tmp_path: pathlib.Path, recorded: datetime.timedelta, forged: float, labels: dict[str, str]
) -> None:
    """In the exporters' own job: neither use nor coverage, nor whether what rules record is used."""
    with Prometheus(tmp_path / "own") as own:
        metrics, pods = Metrics(own, mark=False), []
        for node in NODES:
            pods.append((metrics.space, f"p-{node}"))
            metrics.write(idle(), pod=f"p-{node}", instance=EXPORTERS[node], Hostname=node)
        metrics.record(recorded)

        def usages() -> tuple[Usages, Usages]:
            signal = metrics.signal(recording=RecordingRules.TRUSTED, exporter_namespaces=("monitoring",))
            signal.expect(pods, pods, _whereabouts(*pods))
            return signal.usages(DAY, metrics.at), signal.usages(12 * HOUR, metrics.at, of=pods[:1])

        before = usages()
        for name in (*(f"p-{node}" for node in NODES), *(f"junk-{number}" for number in range(9))):
            for kind, value in {"mean": forged, "max": forged, "count": 9_999}.items():
                record = {f"gpu_rightsizer:activity:{kind}5m": value}
                metrics.write(record, {"metric": UTIL, **labels}, pod=name, step_s=300)
        assert usages() == before


@pytest.mark.prometheus
def test_usages_of_exporters_that_restarted_count(prometheus: Prometheus) -> None:
    """Their old addresses are nobody's any more."""
    metrics, whereabouts = _fleet(prometheus)
    metrics.write(idle(**{UTIL: 50}), pod="p-n1", instance="10.0.1.200:9400", until=DAY / 2)
    found, words = _usages(metrics, whereabouts)
    assert found[metrics.space, "p-n1"][0].activity_peak == near(0.5)
    assert words == ()


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("instance", "counts"),
    [
        pytest.param(EXPORTERS["n1"], True, id="exporter-of-its-node"),
        pytest.param(EXPORTERS["n2"], False, id="another-nodes-exporter"),
        pytest.param(TENANT, False, id="tenant"),
    ],
)
def test_boards_series_count_only_from_the_exporter_of_their_node(
    prometheus: Prometheus, instance: str, *, counts: bool
) -> None:
    """Who invents an idle board, for one that has no series, frees nothing on it."""
    metrics, whereabouts = _fleet(prometheus)
    metrics.write({POWER: 55, MEMORY: 0, CLOCK: 210}, UUID="GPU-p-n9", modelName=A100, instance=instance)
    signal = metrics.signal()
    signal.expect(whereabouts.pods.keys(), whereabouts.pods.keys(), whereabouts)
    found = signal.boards(DAY, metrics.at, nodes={"GPU-p-n9": "n1"}, models={A100})
    assert ("GPU-p-n9" in found) is counts
    histories = signal.board_histories({"GPU-p-n9": "n1"}, DAY, metrics.at, BoardLevel(60.0, 210e6))
    assert (Slot.IDLE in histories["GPU-p-n9"].slots if histories else False) is counts


def _connected(metrics: Metrics, node: str, one: str, other: str, connection: str) -> None:
    labels = {"UUID": one, "peer_UUID": other, "connection": connection, "instance": EXPORTERS[node]}
    metrics.write({"gpu_topology": 1}, labels, since=HOUR, modelName="")


@pytest.mark.prometheus
def test_nvlink_is_what_the_exporter_on_the_gpus_node_says(metrics: Metrics) -> None:
    """NVLink, but not PCIe; another node's exporter and a tenant say nothing."""
    pods = {(metrics.space, f"p-{node}"): node for node in NODES}
    for (_, name), node in pods.items():
        metrics.write(idle(), pod=name, instance=EXPORTERS[node])
    signal = metrics.signal()
    signal.expect(pods.keys(), pods.keys(), Whereabouts(pods, _addresses()))
    boards = {"GPU-0": "n1", "GPU-1": "n1", "GPU-2": "n1", "GPU-3": "n2"}
    assert signal.nvlink(boards, metrics.at) == {}
    _connected(metrics, "n1", "GPU-0", "GPU-1", "NV12")
    _connected(metrics, "n1", "GPU-1", "GPU-0", "NV12")
    _connected(metrics, "n1", "GPU-0", "GPU-2", "SYS")
    _connected(metrics, "n1", "GPU-2", "GPU-0", "SYS")
    _connected(metrics, "n1", "GPU-3", "GPU-9", "NV12")
    _connected(metrics, "n1", "GPU-9", "GPU-3", "NV12")
    metrics.write(
        {"gpu_topology": 1},
        {"UUID": "GPU-2", "peer_UUID": "GPU-1", "connection": "NV12", "instance": TENANT},
        since=HOUR,
        modelName="",
    )
    signal.expect(pods.keys(), pods.keys(), Whereabouts(pods, _addresses()))
    assert signal.nvlink(boards, metrics.at) == {
        "GPU-0": frozenset({"GPU-1"}),
        "GPU-1": frozenset({"GPU-0"}),
        "GPU-2": frozenset(),
    }
