"""Workloads, GPU requests and managers from API objects."""

import datetime
from collections.abc import Mapping
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.changes.record_codec import HISTORY_ANNOTATION, write_history
from rightsizer.inventory.demand_kinds import NamedQueues
from rightsizer.kinds import KINDS
from rightsizer.kube.owner_kinds import OWNERS, OwnerKind
from rightsizer.model import ChangeRecord, Manager
from tests.rightsizer.build import MANY
from tests.rightsizer.kubectl import GPU, TEAM, Object, claim, fleet_of, node, obj, pod, using, workloads_of

CHAINS = {
    "deployment": (("Deployment", "apps/v1"), ("ReplicaSet", "apps/v1")),
    "jobset": (("JobSet", "jobset.x-k8s.io/v1alpha2"), ("Job", "batch/v1")),
    "trainjob": (
        ("TrainJob", "trainer.kubeflow.org/v1alpha1"),
        ("JobSet", "jobset.x-k8s.io/v1alpha2"),
        ("Job", "batch/v1"),
    ),
    "leaderworkerset": (
        ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"),
        ("StatefulSet", "apps/v1"),
        ("Pod", "v1"),
        ("StatefulSet", "apps/v1"),
    ),
    "spark-executor": (("SparkApplication", "sparkoperator.k8s.io/v1beta2"), ("Pod", "v1")),
    "knative-under-kserve": (
        ("InferenceService", "serving.kserve.io/v1beta1"),
        ("Service", "serving.knative.dev/v1"),
        ("Configuration", "serving.knative.dev/v1"),
        ("Revision", "serving.knative.dev/v1"),
        ("Deployment", "apps/v1"),
        ("ReplicaSet", "apps/v1"),
    ),
    "notebook": (("Notebook", "kubeflow.org/v1"), ("StatefulSet", "apps/v1")),
    "rayjob": (("RayJob", "ray.io/v1"), ("RayCluster", "ray.io/v1")),
    "volcano": (("Job", "batch.volcano.sh/v1alpha1"),),
    "appwrapper": (("AppWrapper", "workload.codeflare.dev/v1beta2"), ("PyTorchJob", "kubeflow.org/v1")),
}


def _chain(*kinds: tuple[str, str], fields: Mapping[str, Any] | None = None) -> list[Object]:
    """Objects that own one another, from the top down, and a GPU pod of the last."""
    found: list[Object] = []
    for number, (kind, api_version) in enumerate(kinds):
        more = fields if number == 0 and fields else {}
        if kind == "Pod":
            found.append(pod(f"o{number}", *found[-1:], limits={}))
        else:
            found.append(obj(kind, f"o{number}", *found[-1:], api_version=api_version, **more))
    return [*found, pod("p", *found[-1:])]


@pytest.mark.parametrize("name", CHAINS)
def test_pod_belongs_to_its_topmost_known_owner(name: str) -> None:
    """Through every kind between a pod and its owner's manifest."""
    (kind, api_version), *_ = CHAINS[name]
    (found,) = fleet_of(*_chain(*CHAINS[name])).workloads
    assert (found.ref.api_version, found.ref.kind, found.ref.name) == (api_version, kind, "o0")
    assert (found.resource_version, found.gang, found.gpus) == ("7", "", 1)


def test_unknown_owner_above_a_known_one_is_the_workload() -> None:
    """Its operator would revert changes below it."""
    top = ("Platform", "example.com/v1")
    (found,) = fleet_of(*_chain(top, *CHAINS["deployment"])).workloads
    assert (found.ref.full_kind, found.ref.name, found.resource_version, found.size) == (
        "Platform.example.com",
        "o0",
        "",
        None,
    )


@pytest.mark.parametrize(
    ("starter", "kind"),
    [("CronJob", "Job"), ("CronWorkflow", "Workflow"), ("ScheduledSparkApplication", "SparkApplication")],
)
def test_job_of_a_cron_job_is_the_workload_and_names_its_starter(starter: str, kind: str) -> None:
    """The CronJob is a manager of the Job."""
    versions = {(row.kind, row.group): row.api_version for row in OWNERS if row.group != "batch.volcano.sh"}
    by_kind = {name: version for (name, _), version in versions.items()}
    objects = _chain((starter, by_kind[starter]), (kind, by_kind[kind]))
    (found,) = fleet_of(*objects).workloads
    assert (found.ref.kind, found.ref.name, found.resource_version) == (kind, "o1", "7")
    (manager,) = found.managers
    assert (manager.kind, manager.name) == (starter, "o0")
    assert " patch " in manager.exception
    assert '"suspend":true' in manager.exception


@pytest.mark.parametrize(("namespace", "is_held"), [(TEAM, True), ("other", False)])
def test_kueue_workload_controls_only_jobs_of_its_namespace(namespace: str, is_held: bool) -> None:
    """Whoever may create one can name any UID."""
    job = obj("Job", "train", spec={"suspend": False})
    place = {"namespace": namespace}
    forged = obj("Workload", "x", job, api_version="kueue.x-k8s.io/v1beta2", metadata=place)
    (found,) = fleet_of(job, pod("p", job), forged).workloads
    assert (found.control_object is not None) is is_held


@pytest.mark.parametrize(("namespace", "changes"), [(TEAM, 1), ("other", 0)])
def test_changes_of_a_cron_job_count_only_in_its_namespace(namespace: str, changes: int) -> None:
    """Whoever may create a Job can name any CronJob's UID as its owner's."""
    starter, at = obj("CronJob", "nightly"), datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
    job = obj("Job", "nightly-1", starter, spec={"suspend": False})
    history = write_history([ChangeRecord(at, "run", "suspend", 1)])
    metadata = {"namespace": namespace, "annotations": {HISTORY_ANNOTATION: history}}
    forged = obj("Job", "nightly-0", starter, metadata=metadata, spec={"suspend": True})
    (found,) = fleet_of(job, pod("p", job), forged).workloads
    assert len(found.past) == changes


def test_size_path_of_each_kind_is_the_field_that_stops_it() -> None:
    """For every kind that gpu-rightsizer stops."""
    stops = {row: row.stop.field.path for row in KINDS if row.stop and row.stop.field}
    in_spec = {row: path for row, path in stops.items() if path[0] == "spec"}
    assert in_spec
    assert {row: path[: path.index("*")] if "*" in path else path for row, path in in_spec.items()} == {
        row: row.of.size for row in in_spec
    }


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (("Deployment", "apps/v1"), {"replicas": 3}, 3),
        (("Job", "batch/v1"), {"suspend": False}, False),
        (("PyTorchJob", "kubeflow.org/v1"), {"runPolicy": {"suspend": True}}, True),
        (("MPIJob", "kubeflow.org/v2beta1"), {"runPolicy": None}, None),
        (("RayCluster", "ray.io/v1"), {}, None),
        (("NIMService", "apps.nvidia.com/v1alpha1"), {"replicas": "{{ n }}"}, None),
    ],
)
def test_size_is_read_from_the_kinds_field(
    kind: tuple[str, str], spec: Object, size: int | bool | None
) -> None:
    """Replicas or a switch; other values count as none."""
    (found,) = fleet_of(*_chain(kind, fields={"spec": spec})).workloads
    assert found.size is size if isinstance(size, bool) else found.size == size


# --- gangs

GROUPS: dict[str, tuple[Object, str]] = {
    "coscheduling": ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, "PodGroup.scheduling.x-k8s.io"),
    "coscheduling-old": (
        {"labels": {"pod-group.scheduling.sigs.k8s.io/name": "g"}},
        "PodGroup.scheduling.x-k8s.io",
    ),
    "volcano": ({"annotations": {"scheduling.k8s.io/group-name": "g"}}, "PodGroup.scheduling.volcano.sh"),
    "kai": ({"annotations": {"pod-group-name": "g"}}, "PodGroup.scheduling.run.ai"),
    "kueue": ({"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}, "Workload.kueue.x-k8s.io"),
    "volcano-job": ({"annotations": {"volcano.sh/job-name": "g"}}, "Job.batch.volcano.sh"),
    "leaderworkerset": (
        {"labels": {"leaderworkerset.sigs.k8s.io/name": "g"}},
        "LeaderWorkerSet.leaderworkerset.x-k8s.io",
    ),
    "ray": ({"labels": {"ray.io/cluster": "g"}}, "RayCluster.ray.io"),
    "jobset": ({"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}}, "JobSet.jobset.x-k8s.io"),
    "training": (
        {
            "labels": {
                "training.kubeflow.org/job-name": "g",
                "training.kubeflow.org/operator-name": "mpijob-controller",
            }
        },
        "MPIJob.kubeflow.org",
    ),
    "training-of-whom": ({"labels": {"training.kubeflow.org/job-name": "g"}}, "TrainingJob.kubeflow.org"),
    "koordinator": (
        {"annotations": {"gang.scheduling.koordinator.sh/name": "g"}},
        "PodGroup.scheduling.sigs.k8s.io",
    ),
    "armada": ({"annotations": {"armadaproject.io/gangId": "g"}}, "Gang.armadaproject.io"),
    "kubernetes-1.37": ({"spec": {"schedulingGroup": {"podGroupName": "g"}}}, "PodGroup.scheduling.k8s.io"),
    "kubernetes-1.35": (
        {"spec": {"workloadRef": {"name": "g", "podGroup": "workers"}}},
        "Workload.scheduling.k8s.io",
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_bare_pods_of_a_gang_are_one_workload(name: str) -> None:
    """For every gang scheduler; the gang cannot be stopped as a pod can."""
    fields, kind = GROUPS[name]
    found = workloads_of(pod("a", **_copy(fields)), pod("b", **_copy(fields)), pod("c"))
    assert set(found) == {f"{kind.partition('.')[0]}/g", "Pod/c"}
    gang = found[f"{kind.partition('.')[0]}/g"]
    assert (gang.ref.full_kind, [one.ref.name for one in gang.pods]) == (kind, ["a", "b"])
    assert (gang.resource_version, gang.size, gang.gang) == ("", None, f"{gang.ref.kind} {TEAM}/g")
    assert (found["Pod/c"].gang, found["Pod/c"].resource_version) == ("", "7")


def _copy(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(value) for key, value in fields.items()}


CLUSTERS = {
    "skypilot-cluster-name": "SkyPilot",
    "skypilot-cluster": "SkyPilot",
    "ray-cluster-name": "Ray",
    "spark-app-selector": "Spark",
    "dask.org/cluster-name": "Dask",
    "gateway.dask.org/cluster": "Dask",
    "scheduler.slinky.slurm.net/slurm-jobid": "Slurm",
    "example.com/team-cluster": "Gang",
}
NAMED = NamedQueues(gang_labels=frozenset({"example.com/team-cluster"}))


@pytest.mark.parametrize("label", CLUSTERS)
def test_bare_pods_of_a_cluster_are_one_workload(label: str) -> None:
    """By labels alone, within their namespace; one pod is no cluster, and pods with a controller are the latter's."""
    of, top = {"labels": {label: "g"}}, obj("Deployment", "d", spec={"replicas": 1})
    there = {"namespace": "other"}
    pods = (
        pod("a", **_copy(of)),
        pod("b", **_copy(of)),
        pod("owned", top, **_copy(of)),
        pod("c", labels={label: "h"}),
        pod("d", **there, **of),
    )
    found = {str(one.ref): one for one in fleet_of(top, *pods, queues=NAMED).workloads}
    kind = CLUSTERS[label]
    assert set(found) == {f"{TEAM}/{kind}/g", f"{TEAM}/Deployment/d", f"{TEAM}/Pod/c", "other/Pod/d"}
    gang = found[f"{TEAM}/{kind}/g"]
    assert ([one.ref.name for one in gang.pods], gang.resource_version, gang.size) == (["a", "b"], "", None)


def test_bare_pod_of_a_cluster_whose_head_has_no_gpus_is_not_alone() -> None:
    """The head may be at work."""
    of = {"labels": {"spark-app-selector": "g"}}
    assert set(workloads_of(pod("a", **_copy(of)), pod("b", limits={}, **_copy(of)))) == {"Spark/g"}


def test_bare_pod_beside_a_controller_of_its_cluster_is_not_alone() -> None:
    """It is no pod like others, and hides the controller's pods from nothing."""
    of, top = {"labels": {"dask.org/cluster-name": "g"}}, obj("Deployment", "d", spec={"replicas": 1})
    found = workloads_of(top, pod("a", **_copy(of)), pod("b", top, **_copy(of)))
    assert {name: one.gang for name, one in found.items()} == {
        "Dask/g": f"Dask {TEAM}/g",
        "Deployment/d": "",
    }


@pytest.mark.parametrize("limits", [{}, {"nvidia.com/gpu": "1"}], ids=["without-gpus", "with-a-gpu"])
def test_executors_of_a_driver_are_its_workload(limits: dict[str, str]) -> None:
    """A pod that owns the others stops them all."""
    of = {"labels": {"spark-app-selector": "g"}}
    driver = pod("driver", limits=limits, **_copy(of))
    executors = [pod(f"e{number}", driver, **_copy(of)) for number in range(2)]
    assert set(workloads_of(driver, *executors)) == {"Pod/driver"}


def test_label_of_the_policy_alone_makes_no_gang_elsewhere() -> None:
    """Without the policy, it is a label like others."""
    of = {"labels": {"example.com/team-cluster": "g"}}
    assert set(workloads_of(pod("a", **_copy(of)), pod("b", **_copy(of)))) == {"Pod/a", "Pod/b"}


def test_only_gpu_pod_of_a_gang_is_not_a_bare_pod() -> None:
    """Others may have no GPUs, or not exist yet."""
    fields = GROUPS["coscheduling"][0]
    assert set(workloads_of(pod("a", **_copy(fields)), pod("b", limits={}, **_copy(fields)))) == {
        "PodGroup/g"
    }


@pytest.mark.parametrize("name", GROUPS)
def test_gang_of_one_owner_is_that_owner(name: str) -> None:
    """If the pods have one owner, the gang adds nothing."""
    top = obj("JobSet", "train", api_version="jobset.x-k8s.io/v1alpha2")
    jobs = [obj("Job", f"train-{number}", top) for number in range(2)]
    pods = [pod(f"p{number}", job, **_copy(GROUPS[name][0])) for number, job in enumerate(jobs)]
    found = workloads_of(top, *jobs, *pods)
    assert set(found) == {"JobSet/train"}
    assert (found["JobSet/train"].gang, found["JobSet/train"].gpus) == ("", 2)


def test_gang_merges_annotations_of_its_owners() -> None:
    """An opt-out of one member counts for all, and contradicting values are invalid."""
    annotations = [{"gpu-rightsizer.io/mode": "enforce", "a": "1"}, {"gpu-rightsizer.io/mode": "off"}, {}]
    tops = [obj("Job", f"j{number}", metadata={"annotations": one}) for number, one in enumerate(annotations)]
    fields = {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}
    found = workloads_of(*tops, *(pod(f"p{number}", top, **_copy(fields)) for number, top in enumerate(tops)))
    assert found["PodGroup/g"].annotations == {"gpu-rightsizer.io/mode": "enforce | off", "a": "1"}


def test_group_of_a_single_pod_is_not_a_gang() -> None:
    """Volcano and KAI create a group for every pod, named after its UID."""
    found = workloads_of(
        pod("a", annotations={"scheduling.k8s.io/group-name": "podgroup-uid-Pod-a"}),
        pod("b", annotations={"pod-group-name": "pg-b-uid-Pod-b"}),
    )
    assert set(found) == {"Pod/a", "Pod/b"}


@st.composite
def _clusters(draw: st.DrawFn) -> list[Object]:
    """Controllers that own one another in any way, circles, doubled and missing owners included, and GPU pods."""
    rows = draw(st.lists(st.sampled_from([*OWNERS[1:], None]), max_size=6))
    tops = [
        obj(row.kind, f"o{number}", api_version=row.api_version)
        if row
        else obj("Platform", f"o{number}", api_version="example.com/v1")
        for number, row in enumerate(rows)
    ]
    absent = obj("Deployment", "absent")
    owners = st.lists(st.sampled_from([*tops, absent]), max_size=2, unique_by=id)
    linked = [
        obj(one["kind"], one["metadata"]["name"], *draw(owners), api_version=one["apiVersion"])
        for one in tops
    ]
    groups = st.dictionaries(
        st.sampled_from(["ray.io/cluster", "scheduling.x-k8s.io/pod-group"]),
        st.sampled_from("gh"),
        max_size=2,
    )
    pods = [
        pod(f"p{number}", *draw(owners), labels=draw(groups)) for number in range(draw(st.integers(1, 6)))
    ]
    return [*draw(st.permutations([*linked, *pods]))]


@MANY
@hypothesis.given(_clusters(), st.randoms())
def test_every_pod_belongs_to_exactly_one_workload(objects: list[Object], random: Any) -> None:
    """Whatever the owner references and gangs; the order does not matter."""
    fleet = fleet_of(*objects)
    names = [one.ref.name for workload in fleet.workloads for one in workload.pods]
    pods = [one for one in objects if one["kind"] == "Pod"]
    assert sorted(names) == sorted(one["metadata"]["name"] for one in pods)
    assert len({workload.ref for workload in fleet.workloads}) == len(fleet.workloads)
    home = {one.ref.name: workload.ref for workload in fleet.workloads for one in workload.pods}
    for key in ("ray.io/cluster", "scheduling.x-k8s.io/pod-group"):
        for value in "gh":
            of_gang = [one for one in pods if one["metadata"]["labels"].get(key) == value]
            assert len({home[one["metadata"]["name"]] for one in of_gang}) <= 1
    for workload in fleet.workloads:
        # Nothing that was not read itself can be written to.
        was_read = any(one["metadata"]["uid"] == workload.ref.uid for one in objects)
        assert was_read or workload.resource_version == ""
    shuffled = list(objects)
    random.shuffle(shuffled)
    assert fleet_of(*shuffled).workloads == fleet.workloads


# --- resources


@pytest.mark.parametrize(
    ("fields", "devices", "is_shared", "resources"),
    [
        pytest.param({"limits": {GPU: "2"}}, 2, False, {GPU: 2}, id="whole"),
        pytest.param(
            {"limits": {"nvidia.com/mig-1g.10gb": "1"}}, 1, False, {"nvidia.com/mig-1g.10gb": 1}, id="mig"
        ),
        pytest.param(
            {"limits": {"nvidia.com/mig-1g.10gb.shared": "1"}},
            1,
            True,
            {"nvidia.com/mig-1g.10gb.shared": 1},
            id="mig-shared",
        ),
        pytest.param(
            {"limits": {"nvidia.com/gpu.shared": "2"}}, 2, True, {"nvidia.com/gpu.shared": 2}, id="shared"
        ),
        pytest.param(
            {"limits": {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "3000"}},
            2,
            True,
            {"volcano.sh/vgpu-number": 2},
            id="volcano-vgpu",
        ),
        pytest.param(
            {"limits": {GPU: "2", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}},
            2,
            True,
            {GPU: 2, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30},
            id="hami",
        ),
        pytest.param(
            {"limits": {"nvidia.com/gpumem-percentage": "50"}},
            1,
            True,
            {"nvidia.com/gpumem-percentage": 50},
            id="hami-without-a-number",
        ),
        pytest.param(
            {"limits": {"aliyun.com/gpu-mem": "10"}}, 1, True, {"aliyun.com/gpu-mem": 10}, id="gpushare"
        ),
        pytest.param(
            {"limits": {"alpha.kubernetes.io/nvidia-gpu": "1"}},
            1,
            False,
            {"alpha.kubernetes.io/nvidia-gpu": 1},
            id="legacy",
        ),
        pytest.param(
            {"limits": {}, "annotations": {"gpu-fraction": "0.5"}},
            1,
            True,
            {"gpu-fraction": 1},
            id="kai-fraction",
        ),
        pytest.param(
            {"limits": {}, "annotations": {"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}},
            2,
            True,
            {"gpu-memory": 2},
            id="kai-memory-of-two",
        ),
        pytest.param({"limits": {"example.com/npu": "3"}}, 3, False, {"example.com/npu": 3}, id="configured"),
        pytest.param(
            {"limits": {"example.com/npu-mem": "3"}},
            1,
            True,
            {"example.com/npu-mem": 3},
            id="configured-amount",
        ),
    ],
)
def test_gpu_request_counts_devices_and_shares(
    fields: Object, devices: int, is_shared: bool, resources: Mapping[str, int]
) -> None:
    """Amounts are one share, and shares differ from whole GPUs."""
    fleet = fleet_of(pod("p", **fields), gpu_resources=["example.com/npu", "example.com/npu-mem=amount"])
    (found,) = fleet.workloads[0].pods
    assert (found.devices, found.is_shared, found.resources) == (devices, is_shared, resources)
    assert found.unreadable == ()


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"gpu-fraction": "half"}, "has an invalid annotation gpu-fraction: 'half'"),
        ({"gpu-fraction": "0"}, "has an invalid annotation gpu-fraction: '0'"),
        (
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "x"},
            "has an invalid annotation gpu-fraction-num-devices: 'x'",
        ),
    ],
)
def test_invalid_fraction_annotation_is_reported(annotations: Mapping[str, str], words: str) -> None:
    """It is not guessed at."""
    (found,) = fleet_of(pod("p", limits={}, annotations=annotations)).workloads[0].pods
    assert (found.devices, found.unreadable) == (0, (words,))


def test_huge_amount_is_reported_as_invalid() -> None:
    """It does not count as a number of GPUs."""
    (found,) = fleet_of(pod("p", limits={"nvidia.com/gpu": "1e1000000"})).workloads[0].pods
    assert (found.devices, found.unreadable) == (
        0,
        ("requests nvidia.com/gpu: '1e1000000', which is not a whole number of devices",),
    )


CLASS = "deviceclass:gpu.nvidia.com"


def test_claim_counts_its_allocated_devices() -> None:
    """Named claims and claims from templates; claims for other devices count nothing."""
    found = workloads_of(
        claim("two", devices=2, users=["named"]),
        claim("made-x7", devices=1, users=["made"]),
        claim("nic", devices=1, driver="nic.example.com", users=["named", "nic-only"]),
        pod("named", **using("two", "nic")),
        pod("made", **using(made={"gpu": "made-x7", "not-needed": None})),
        pod("nic-only", **using("nic")),
    )
    assert set(found) == {"Pod/named", "Pod/made"}
    (named,), (made,) = found["Pod/named"].pods, found["Pod/made"].pods
    assert (named.devices, named.is_shared, named.resources) == (2, False, {CLASS: 2})
    assert (made.devices, made.unreadable) == (1, ())


@pytest.mark.parametrize(
    ("one", "devices", "is_shared", "unreadable"),
    [
        pytest.param(claim("c", devices=1, users=["p", "q"]), 1, True, (), id="several-pods-use-it"),
        pytest.param(claim("c", devices=1, result={"shareID": "s1"}), 1, True, (), id="a-share-of-a-device"),
        pytest.param(claim("c", devices=None, request={"count": 4}), 4, False, (), id="not-allocated-yet"),
        pytest.param(
            claim("c", devices=None, request={"allocationMode": "All"}),
            0,
            False,
            ("requests all devices of class gpu.nvidia.com of a node by claim c",),
            id="all-there-are",
        ),
        pytest.param(
            claim("other", devices=1), 0, False, ("has claim c, which could not be read",), id="missing"
        ),
    ],
)
def test_shared_or_unallocated_claim_is_counted_or_reported(
    one: Object, devices: int, is_shared: bool, unreadable: tuple[str, ...]
) -> None:
    """Shared claims are shares, unallocated ones count their requests, others are unknown."""
    (found,) = workloads_of(one, pod("p", **using("c")))["Pod/p"].pods
    assert (found.devices, found.is_shared, found.unreadable) == (devices, is_shared, unreadable)


def test_claim_of_init_containers_alone_is_unusable() -> None:
    """A claim that a main container uses, too, is not."""
    fields = using("two", "both")
    fields["spec"]["initContainers"] = [{**fields["spec"]["containers"][0], "name": "init"}]
    fields["spec"]["containers"] = [
        {"name": "main", "image": "x", "resources": {"claims": [{"name": "c-both"}]}}
    ]
    claims = [claim("two", devices=2, users=["p"]), claim("both", devices=1, users=["p"])]
    (found,) = workloads_of(*claims, pod("p", **fields))["Pod/p"].pods
    assert (found.devices, found.unusable) == (3, 2)


def test_claim_with_admin_access_holds_nothing() -> None:
    """Monitoring takes no device."""
    watching = claim("c", devices=8, result={"adminAccess": True})
    assert workloads_of(watching, pod("monitor", **using("c")), pod("p")).keys() == {"Pod/p"}


def test_claim_with_admin_access_reaches_gpus_that_others_hold() -> None:
    """A claim that a pod does not name changes nothing for it."""
    watching = claim("c", devices=8, result={"adminAccess": True})
    found = workloads_of(
        watching, claim("own", devices=1, users=["p"]), pod("p", **using("c", "own")), pod("q")
    )
    (watcher,), (plain,) = found["Pod/p"].pods, found["Pod/q"].pods
    assert (watcher.devices, watcher.reach) == (1, "its claim c has admin access")
    assert not plain.reach


def test_extended_resource_backed_by_a_claim_is_counted_once() -> None:
    """KEP-5004: the scheduler turned nvidia.com/gpu into a claim."""
    status = {
        "phase": "Running",
        "extendedResourceClaimStatus": {
            "resourceClaimName": "p-extended-resources-x",
            "requestMappings": [{"containerName": "main", "resourceName": GPU, "requestName": "r"}],
        },
    }
    made = claim("p-extended-resources-x", devices=2, users=["p"])
    (found,) = workloads_of(made, pod("p", limits={GPU: "2"}, status=status))["Pod/p"].pods
    assert (found.devices, found.resources) == (2, {GPU: 2})


def test_reservation_pods_of_schedulers_are_not_workloads() -> None:
    """They reserve GPUs for fractions, and still count on their node."""
    holder = pod("gpu-reservation-n1", limits={GPU: "1"}, namespace="kai-resource-reservation")
    waiting = pod("w", limits={GPU: "8"}, spec={"nodeName": ""}, status=UNSCHEDULABLE)
    fleet = fleet_of(holder, waiting, node(gpus=8))
    assert [one.ref.name for one in fleet.workloads] == ["w"]
    assert [one.free for one in fleet.stranded] == [7]


@pytest.mark.parametrize(
    ("state", "started", "restarts", "waiting"),
    [
        ({"running": {"startedAt": "2026-11-02T00:00:00Z"}}, "2026-11-02", 2, ""),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, None, 2, "CrashLoopBackOff"),
        ({"terminated": {"reason": "Completed"}}, None, 2, "Completed"),
    ],
)
def test_pod_state_is_that_of_its_gpu_container(
    state: Object, started: str | None, restarts: int, waiting: str
) -> None:
    """Start, restarts and waiting reason."""
    statuses = [
        {"name": "main", "restartCount": 2, "state": state},
        {"name": "sidecar", "restartCount": 9, "state": {"running": {"startedAt": "2026-11-09T00:00:00Z"}}},
    ]
    containers = [
        {"name": "main", "resources": {"limits": {GPU: "1"}}},
        {"name": "sidecar", "resources": {"limits": {"cpu": "1"}}},
    ]
    status = {"phase": "Running", "containerStatuses": statuses}
    (found,) = fleet_of(pod("p", spec={"containers": containers}, status=status)).workloads[0].pods
    assert (str(found.started)[:10] if found.started else None) == started
    assert (found.restarts, found.waiting) == (restarts, waiting)


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
}

# --- managers


def _managers(*more: Object, kind: str = "Deployment", metadata: Object | None = None) -> tuple[Manager, ...]:
    api_version = "batch/v1" if kind == "Job" else "apps/v1"
    spec = {"suspend": False} if kind == "Job" else {"replicas": 1}
    top = obj(kind, "w", metadata=metadata or {}, api_version=api_version, spec=spec)
    (found,) = fleet_of(top, pod("p", top), *more).workloads
    return found.managers


@pytest.mark.parametrize(
    ("metadata", "kind", "name", "reverts", "exception"),
    [
        pytest.param(
            {"annotations": {"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:team/w"}},
            "Argo CD",
            "shop",
            True,
            "jsonPointers: [/spec/replicas]",
            id="argo",
        ),
        pytest.param(
            {"labels": {"argocd.argoproj.io/instance": "shop"}},
            "Argo CD",
            "shop",
            True,
            "RespectIgnoreDifferences=true",
            id="argo-by-label",
        ),
        pytest.param(
            {"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}},
            "Flux",
            "apps",
            True,
            "kubectl -n team annotate deployments.apps w kustomize.toolkit.fluxcd.io/reconcile=disabled",
            id="flux",
        ),
        pytest.param(
            {
                "labels": {"kustomize.toolkit.fluxcd.io/name": "apps"},
                "annotations": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"},
            },
            "Flux",
            "apps",
            False,
            "reconcile=disabled",
            id="flux-that-was-told",
        ),
        pytest.param(
            {
                "labels": {"helm.toolkit.fluxcd.io/name": "rel"},
                "annotations": {"meta.helm.sh/release-name": "rel"},
            },
            "Flux",
            "rel",
            True,
            '- paths: ["/spec/replicas"]',
            id="flux-helm",
        ),
        pytest.param(
            {"annotations": {"meta.helm.sh/release-name": "rel"}}, "Helm", "rel", False, "", id="helm"
        ),
        pytest.param({"labels": {"kueue.x-k8s.io/queue-name": "q"}}, "Kueue", "q", False, "", id="kueue"),
    ],
)
def test_manager_is_recognised_by_its_marks(
    metadata: Object, kind: str, name: str, reverts: bool, exception: str
) -> None:
    """With the setting that makes it accept a change."""
    (found,) = _managers(metadata=metadata)
    assert (found.kind, found.name, found.reverts) == (kind, name, reverts)
    assert exception in found.exception


def _fields(manager: str, operation: str, spec: Object, subresource: str = "") -> Object:
    entry = {
        "manager": manager,
        "operation": operation,
        "apiVersion": "apps/v1",
        "time": "2026-11-21T00:00:00Z",
    }
    fields = {"fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec, "f:metadata": {"f:labels": {}}}}
    return {**entry, **fields, **({"subresource": subresource} if subresource else {})}


_REPLICAS: Object = {"f:replicas": {}, "f:template": {"f:spec": {}}}
_TEMPLATE: Object = {"f:template": {"f:spec": {}}}


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        pytest.param(_fields("argocd-controller", "Apply", _TEMPLATE), ("Argo CD", "", True), id="argo"),
        pytest.param(
            _fields("argocd-controller", "Update", _REPLICAS), ("Argo CD", "", True), id="argo-update"
        ),
        pytest.param(_fields("kustomize-controller", "Apply", _REPLICAS), ("Flux", "", True), id="flux"),
        pytest.param(_fields("helm", "Update", _REPLICAS), ("Helm", "", False), id="helm"),
        pytest.param(
            _fields("platform-operator", "Apply", _REPLICAS),
            ("Field manager", "platform-operator", True),
            id="who-applies-the-field",
        ),
        pytest.param(_fields("platform-operator", "Apply", _TEMPLATE), None, id="who-applies-others"),
        pytest.param(_fields("platform-operator", "Update", _REPLICAS), None, id="who-wrote-it-once"),
        pytest.param(_fields("kubectl", "Apply", _REPLICAS), None, id="a-person"),
        pytest.param(_fields("Terraform", "Apply", _REPLICAS), None, id="a-tool-that-a-person-runs"),
        pytest.param(_fields("gpu-rightsizer", "Apply", _REPLICAS), None, id="ourselves"),
        pytest.param(_fields("x", "Apply", _REPLICAS, "scale"), None, id="by-its-scale"),
        pytest.param({"manager": "x", "operation": "Apply", "fieldsV1": None}, None, id="nothing"),
    ],
)
def test_manager_is_recognised_by_managed_fields(entry: Object, found: tuple[str, str, bool] | None) -> None:
    """Even without labels or annotations."""
    managers = _managers(metadata={"managedFields": [entry]})
    assert [(one.kind, one.name, one.reverts) for one in managers] == ([found] if found else [])


def test_manager_with_marks_and_managed_fields_is_listed_once() -> None:
    """The mark takes precedence."""
    marks = {"annotations": {"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:team/w"}}
    (found,) = _managers(
        metadata={**marks, "managedFields": [_fields("argocd-controller", "Apply", _REPLICAS)]}
    )
    assert (found.kind, found.name) == ("Argo CD", "shop")


def test_generic_instance_label_is_not_argo_cd() -> None:
    """Charts set that label, too."""
    assert _managers(metadata={"labels": {"app.kubernetes.io/instance": "shop"}}) == ()


QUEUED: Object = {"labels": {"kueue.x-k8s.io/queue-name": "q"}}


@pytest.mark.parametrize("row", OWNERS, ids=lambda row: f"{row.kind}.{row.group}")
def test_kueue_reverts_changes_of_the_kinds_that_it_suspends(row: OwnerKind) -> None:
    """The integrations of Kueue 0.17 with Suspend(); of all other kinds it only holds back the pods."""
    suspended = {
        *("Job.batch", "JobSet.jobset.x-k8s.io", "TrainJob.trainer.kubeflow.org", "RayCluster.ray.io"),
        *("RayJob.ray.io", "RayService.ray.io", "AppWrapper.workload.codeflare.dev"),
        *("SparkApplication.sparkoperator.k8s.io", "MPIJob.kubeflow.org", "PyTorchJob.kubeflow.org"),
        *("TFJob.kubeflow.org", "XGBoostJob.kubeflow.org", "PaddleJob.kubeflow.org", "JAXJob.kubeflow.org"),
    }
    if row.starts_others:
        return  # what it starts is the workload
    top = obj(row.kind, "w", api_version=row.api_version, metadata=_copy(QUEUED), spec={})
    (found,) = fleet_of(top if row.kind != "Pod" else pod("w", **QUEUED), pod("p", top)).workloads[-1:]
    (manager,) = found.managers
    is_suspended = f"{row.kind}.{row.group}" in suspended
    assert (manager.kind, manager.reverts) == ("Kueue", is_suspended)
    assert ('"active":false' in manager.exception) is is_suspended


@pytest.mark.parametrize(
    "row", [row for row in OWNERS if row.ended], ids=lambda row: f"{row.kind}.{row.group}"
)
def test_kueue_manages_no_job_that_has_ended(row: OwnerKind) -> None:
    """Its Workload is finished, or deleted; an unreadable state is none in which it has ended."""
    for state, is_managed in ((next(iter(row.ended)), False), ("Running", True), (7, True)):
        within: Any = [{"type": state, "status": "True"}] if row.phase == ("conditions",) else state
        for step in reversed(row.phase):
            within = {step: within}
        top = obj(row.kind, "w", api_version=row.api_version, metadata=_copy(QUEUED), spec={}, status=within)
        (found,) = fleet_of(top, pod("p", top)).workloads
        assert [one.kind for one in found.managers] == ["Kueue"] * is_managed


def _scaler(kind: str, name: str, **spec: Any) -> Object:
    api_versions = {
        "HorizontalPodAutoscaler": "autoscaling/v2",
        "ScaledObject": "keda.sh/v1alpha1",
        "VerticalPodAutoscaler": "autoscaling.k8s.io/v1",
    }
    metadata = spec.pop("metadata", {})
    owners = spec.pop("owners", ())
    return obj(kind, name, *owners, api_version=api_versions[kind], metadata=metadata, spec=spec)


TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "w"}


def test_autoscalers_of_a_workload_are_managers() -> None:
    """The HPA of a ScaledObject counts as KEDA's."""
    keda = _scaler("ScaledObject", "k", scaleTargetRef={"name": "w"})
    found = _managers(
        keda,
        _scaler("HorizontalPodAutoscaler", "h", scaleTargetRef=TARGET, minReplicas=2, maxReplicas=8),
        _scaler("HorizontalPodAutoscaler", "keda-hpa-k", scaleTargetRef=TARGET, owners=(keda,)),
        _scaler("HorizontalPodAutoscaler", "other", scaleTargetRef={**TARGET, "name": "x"}),
        _scaler("VerticalPodAutoscaler", "v", targetRef=TARGET),
    )
    by_kind = {one.kind: one for one in found}
    assert {kind: (one.name, one.reverts) for kind, one in by_kind.items()} == {
        "HorizontalPodAutoscaler": ("h", False),
        "KEDA": ("k", False),  # it is told itself
        "VerticalPodAutoscaler": ("v", False),
    }
    assert "(now 2 to 8)" in by_kind["HorizontalPodAutoscaler"].exception
    assert by_kind["KEDA"].exception == (
        "kubectl -n team annotate scaledobject k autoscaling.keda.sh/paused-replicas=0"
    )


@pytest.mark.parametrize(
    ("scaler", "reverts"),
    [
        (_scaler("HorizontalPodAutoscaler", "h", scaleTargetRef=TARGET, minReplicas=0), True),
        (
            _scaler(
                "ScaledObject",
                "k",
                scaleTargetRef={"name": "w"},
                metadata={"annotations": {"autoscaling.keda.sh/paused-replicas": "0"}},
            ),
            False,
        ),
    ],
)
def test_autoscaler_reverts_scale_to_zero_if_it_can_wake(scaler: Object, reverts: bool) -> None:
    """An HPA with minReplicas 0 does; a paused ScaledObject does not."""
    (found,) = _managers(scaler)
    assert found.reverts is reverts


def _http(**spec: Any) -> Object:
    """A ScaledObject of KEDA's HTTP add-on."""
    above = obj("HTTPScaledObject", "k", api_version=spec.pop("api_version", "http.keda.sh/v1alpha1"))
    return _scaler("ScaledObject", "k", scaleTargetRef={"name": "w"}, owners=(above,), **spec)


def _hpa(*types: str, least: int = 0, own_zero: str = "") -> Object:
    """With `own_zero` one of Kubernetes 1.37, whose controller tells its own zero replicas."""
    metrics = [{"type": one} for one in types]
    made = _scaler("HorizontalPodAutoscaler", "h", scaleTargetRef=TARGET, minReplicas=least, metrics=metrics)
    conditions = [{"type": "ScaledToZero", "status": own_zero}] if own_zero else []
    return {**made, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("scaler", "wakes"),
    [
        pytest.param(_hpa("External"), True, id="hpa-external"),
        pytest.param(_hpa("Resource", "Object"), True, id="hpa-object"),
        pytest.param(_hpa("Resource", "Pods"), False, id="hpa-of-pods"),
        pytest.param(_hpa(), False, id="hpa-without-metrics"),
        pytest.param(_hpa("External", least=1), False, id="hpa-from-one"),
        pytest.param(_hpa("External", own_zero="False"), False, id="hpa-that-tells-its-own-zero"),
        pytest.param(_hpa("External", own_zero="True"), True, id="hpa-at-its-own-zero"),
        pytest.param(_http(), True, id="http"),
        pytest.param(_http(minReplicaCount=0), True, id="http-from-zero"),
        pytest.param(_http(minReplicaCount=1), False, id="http-from-one"),
        pytest.param(
            _http(metadata={"annotations": {"autoscaling.keda.sh/paused": "true"}}), False, id="http-paused"
        ),
        pytest.param(_http(api_version="example.com/v1"), False, id="of-another-group"),
        pytest.param(
            _scaler("ScaledObject", "k", scaleTargetRef={"name": "w"}, triggers=[{"type": "cron"}]),
            False,
            id="any-trigger",
        ),
    ],
)
def test_autoscaler_wakes_only_what_it_scales_from_zero_by_requests(scaler: Object, wakes: bool) -> None:
    """What comes from pods says nothing without pods, and other triggers may not be requests."""
    (found,) = _managers(scaler)
    assert found.wakes is wakes


@pytest.mark.parametrize(
    ("own_zero", "reverts"), [("False", False), ("True", True), ("Unknown", True), ("", True)]
)
def test_hpa_that_tells_its_own_zero_leaves_ours(own_zero: str, *, reverts: bool) -> None:
    """From Kubernetes 1.37 on; without the condition it would put the replicas back."""
    (found,) = _managers(_hpa("External", own_zero=own_zero))
    assert found.reverts is reverts


def test_autoscaler_of_an_intermediate_owner_does_not_wake_the_top() -> None:
    """A stop of the top ends what the autoscaler scales."""
    chain = _chain(("InferenceService", "serving.kserve.io/v1beta1"), *CHAINS["deployment"])
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "o1"}
    scaler = _scaler(
        "HorizontalPodAutoscaler", "h", scaleTargetRef=target, minReplicas=0, metrics=[{"type": "External"}]
    )
    (found,) = fleet_of(*chain, scaler).workloads
    assert [one.wakes for one in found.managers] == [False]


_CUSTOM = ("Runtime", "serving.example.com/v1")


@pytest.mark.parametrize(
    ("top", "target", "made_by", "is_control"),
    [
        pytest.param(_CUSTOM, "o0", "o0", True, id="of-the-operator-on-its-resource"),
        pytest.param(_CUSTOM, "o1", "o0", True, id="of-the-operator-on-the-deployment-below"),
        pytest.param(_CUSTOM, "o0", "", True, id="of-a-user-on-the-custom-resource"),
        pytest.param(_CUSTOM, "o1", "", True, id="of-a-user-on-the-deployment-below"),
        pytest.param(_CUSTOM, "x", "o0", False, id="on-another"),
        pytest.param(
            ("InferenceService", "serving.kserve.io/v1beta1"), "o1", "o0", False, id="ends-with-kserve"
        ),
        pytest.param(
            ("InferenceService", "serving.kserve.io/v1beta1"), "o1", "", True, id="of-a-user-below-kserve"
        ),
    ],
)
def test_scaled_object_of_any_owner_is_the_control_object(
    top: tuple[str, str], target: str, made_by: str, *, is_control: bool
) -> None:
    """KEDA puts its target back at its next poll, whoever made the ScaledObject; KServe removes its own with a stop."""
    chain = _chain(top, *CHAINS["deployment"])
    named = {one["metadata"]["name"]: one for one in chain}
    of = named.get(target, named["o0"])
    scaler = _scaler(
        "ScaledObject",
        "k",
        scaleTargetRef={"apiVersion": of["apiVersion"], "kind": of["kind"], "name": target},
        owners=(named[made_by],) if made_by else (),
    )
    (found,) = fleet_of(*chain, scaler).workloads
    assert (found.control_object is not None and found.control_object.name) == (is_control and "k")
    assert not any(one.reverts for one in found.managers)


def test_scaled_object_of_one_of_two_targets_is_no_control_object() -> None:
    """The other Deployment would keep its pods."""
    top = obj("Runtime", "r", api_version="serving.example.com/v1")
    below = [obj("Deployment", name, top, spec={"replicas": 1}) for name in "ab"]
    scaler = _scaler("ScaledObject", "k", scaleTargetRef={**TARGET, "name": "b"}, owners=(top,))
    (found,) = fleet_of(
        top, *below, *(pod(f"p{one['metadata']['name']}", one) for one in below), scaler
    ).workloads
    assert found.control_object is None
    assert [(one.kind, one.reverts) for one in found.managers] == [("KEDA", True)]


@pytest.mark.parametrize(
    ("annotations", "is_control", "reverts"),
    [
        *(({"paused": text}, False, False) for text in ("true", "True", "1", "t", "no", "off", "", "FaLsE")),
        *(({"paused": text}, True, False) for text in ("false", "False", "FALSE", "0", "f", "F")),
        ({"paused-replicas": "2"}, True, False),
        ({"paused-replicas": "2", "paused": "true"}, True, False),
        ({"paused-replicas": "two"}, False, False),
        ({"paused-replicas": ""}, False, False),
        ({"paused-scale-out": "true"}, False, False),
        ({"paused-scale-out": "false"}, True, False),
        ({"paused-scale-in": "true"}, True, False),
    ],
    ids=str,
)
def test_scaled_object_is_paused_as_keda_reads_its_annotations(
    annotations: Mapping[str, str], *, is_control: bool, reverts: bool
) -> None:
    """One that would not start its target again is not changed."""
    marks = {f"autoscaling.keda.sh/{key}": text for key, text in annotations.items()}
    top = obj("Deployment", "w", spec={"replicas": 1})
    scaler = _scaler("ScaledObject", "k", scaleTargetRef={"name": "w"}, metadata={"annotations": marks})
    (found,) = fleet_of(top, pod("p", top), scaler).workloads
    assert (found.control_object is not None) is is_control
    assert [one.reverts for one in found.managers] == [reverts]


def test_autoscaler_of_an_intermediate_owner_counts() -> None:
    """KServe's HPA targets the Deployment below the InferenceService."""
    chain = _chain(("InferenceService", "serving.kserve.io/v1beta1"), *CHAINS["deployment"])
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "o1"}
    (found,) = fleet_of(*chain, _scaler("HorizontalPodAutoscaler", "h", scaleTargetRef=target)).workloads
    assert [(one.kind, one.name) for one in found.managers] == [("HorizontalPodAutoscaler", "h")]
