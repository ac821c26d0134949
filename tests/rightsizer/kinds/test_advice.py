"""What a plan says that a stop costs."""

import dataclasses

import pytest

from rightsizer.kinds import KINDS, action_for, kind_of, row_of
from rightsizer.kinds.advice import command_for, stopping
from rightsizer.kinds.change_edits import stop_edits
from rightsizer.model import Action, Edit, FindingName, Manager, ObjectRef, Proposal
from tests.rightsizer.build import AT, all_idle, fleet, judged, pod, policy, workload

NOBODY = "no request wakes it: its owner or gpu-rightsizer undo starts it again"
HPA = Manager("HorizontalPodAutoscaler", "w", scales=True)
_SERVERLESS = ObjectRef("serving.kserve.io/v1beta1", "InferenceService", "research", "w", "uid-w")


@pytest.mark.parametrize(
    ("kind", "name", "managers", "words"),
    [
        pytest.param("apps/v1/Deployment", FindingName.NO_REQUESTS, (), NOBODY, id="nobody"),
        pytest.param("apps/v1/Deployment", FindingName.IDLE, (), "", id="no-server"),
        pytest.param("apps/v1/Deployment", FindingName.NO_REQUESTS, (HPA,), "", id="autoscaler"),
        pytest.param(
            "serving.knative.dev/v1/Service",
            FindingName.NO_REQUESTS,
            (),
            "a request starts it again, and waits for a new pod",
            id="knative",
        ),
        pytest.param(
            "serving.kserve.io/v1beta1/InferenceService",
            FindingName.NO_REQUESTS,
            (),
            "no request wakes it, and its model is loaded again",
            id="kserve",
        ),
    ],
)
def test_lost_says_who_wakes_stopped_inference_server(
    kind: str, name: FindingName, managers: tuple[Manager, ...], words: str
) -> None:
    """The kind says it itself, an autoscaler may, or a person has to."""
    version, _, called = kind.rpartition("/")
    item = workload(pod(), ref=ObjectRef(version, called, "research", "w", "uid-w"), managers=managers)
    decision = judged(item, {}, policy())
    finding = dataclasses.replace(decision.finding, name=name, proposal=None)
    lost = stopping(dataclasses.replace(decision, finding=finding), fleet(item), AT).lost
    assert words in lost
    assert (NOBODY in lost) is (words == NOBODY)


@pytest.mark.parametrize(
    ("managers", "command"),
    [
        ((), "kubectl -n research scale deployment.apps w --replicas 2"),
        (
            (Manager("HorizontalPodAutoscaler", "h", scales=True),),
            """kubectl -n research patch horizontalpodautoscaler h --type merge -p '{"spec": {"minReplicas": 2}}'""",
        ),
        (
            (
                Manager("HorizontalPodAutoscaler", "keda-hpa-k", scales=True),
                Manager("KEDA", "k", scales=True),
            ),
            """kubectl -n research patch scaledobject k --type merge -p '{"spec": {"minReplicaCount": 2}}'""",
        ),
        (
            (Manager("KEDA", "k"), Manager("Helm", "w")),
            "kubectl -n research scale deployment.apps w --replicas 2",
        ),
    ],
    ids=["nobody", "hpa", "keda", "paused"],
)
def test_command_for_scale_down_lowers_the_bound_of_its_autoscaler(
    managers: tuple[Manager, ...], command: str
) -> None:
    """Whose business the replicas are: it would bring them back."""
    proposal = Proposal(Action.SCALE_DOWN, 4.0, "2 replicas needed", replicas=2)
    assert command_for(workload(pod(), managers=managers), Action.SCALE_DOWN, proposal) == command


def test_lost_says_who_wakes_idle_server_that_is_recognised() -> None:
    """By its image, arguments or ports: of other idle workloads it says nothing."""
    for image, is_said in (("vllm/vllm-openai:v1", True), ("team/train", False)):
        item = workload(
            pod(), spec=b'{"template": {"spec": {"containers": [{"image": "%s"}]}}}' % image.encode()
        )
        lost = stopping(judged(item, all_idle(item), policy()), fleet(item), AT).lost
        assert (NOBODY in lost) is is_said


@pytest.mark.parametrize(
    ("kind", "labels", "is_said"),
    [
        pytest.param("InferenceService", {"serving.knative.dev/revision": "w-00001"}, True, id="serverless"),
        pytest.param("InferenceService", {}, False, id="standard"),
        pytest.param("Deployment", {"serving.knative.dev/revision": "w-00001"}, False, id="another-kind"),
    ],
)
def test_lost_of_serverless_inference_service_names_what_wakes(
    kind: str, labels: dict[str, str], *, is_said: bool
) -> None:
    """KServe's stop annotation ends what Knative could wake."""
    group = "serving.kserve.io/v1beta1" if kind == "InferenceService" else "apps/v1"
    item = workload(pod(labels=labels), ref=ObjectRef(group, kind, "research", "w", "uid-w"))
    decision = stopping(judged(item, all_idle(item), policy()), fleet(item), AT)
    assert ("a request starts it again" in decision.lost) is is_said
    assert ("no request" in decision.lost) is (kind == "InferenceService" and not is_said)


def test_serverless_inference_service_scales_to_zero_and_stays_undoable() -> None:
    """By minReplicas, and unless Knative keeps a pod at 0 already; its stop annotation can be undone all the same."""
    item = workload(pod(labels={"serving.knative.dev/revision": "w-00001"}), ref=_SERVERLESS)
    found = row_of(item)
    assert found is not None
    (edit,) = stop_edits(found, {"metadata": {}, "spec": {"predictor": {}}}, AT)
    assert (edit.path, edit.before, edit.after) == (("spec", "predictor", "minReplicas"), None, 0)
    with pytest.raises(ValueError, match="minReplicas is 0, so that Knative keeps"):
        stop_edits(found, {"metadata": {}, "spec": {"predictor": {"minReplicas": 0}}}, AT)
    stopped = Edit(("metadata", "annotations", "serving.kserve.io/stop"), None, "true")
    assert [*found.objections((edit, stopped))] == []
    assert action_for(item) is Action.SCALE_TO_ZERO
    base = kind_of(_SERVERLESS)
    assert base is not None
    assert [*base.objections((edit, stopped))] == []


def test_lost_names_the_autoscaler_that_a_request_makes_start_it_again() -> None:
    """So that the short window has its reason in the plan."""
    item = workload(pod(), managers=(Manager("KEDA", "w", reverts=True, scales=True, wakes=True),))
    lost = stopping(judged(item, all_idle(item), policy()), fleet(item), AT).lost
    assert lost.endswith("a request starts it again by KEDA w")


def test_lost_by_paused_scaled_object_says_that_no_trigger_wakes() -> None:
    """paused-replicas holds the target at zero, whatever its triggers say."""
    keda = Manager("KEDA", "w", scales=True)
    by = ObjectRef("keda.sh/v1alpha1", "ScaledObject", "research", "w", "uid-s")
    item = workload(pod(), managers=(keda,), control_object=by)
    lost = stopping(judged(item, all_idle(item), policy()), fleet(item), AT).lost
    assert "by ScaledObject w: memory of its target's pods; no trigger starts them while it is paused" in lost


def test_kinds_whose_loss_names_requests_say_whether_one_wakes_them() -> None:
    """The sentence and the field of a row cannot differ."""
    said = {row.kind: "no request" not in row.lost for row in KINDS if "request" in row.lost}
    assert said == {row.kind: row.wakes for row in KINDS if row.wakes is not None}
    unwoken = ("InferenceService", "LLMInferenceService", "DynamoGraphDeployment")
    assert said == {**dict.fromkeys(unwoken, False), "Service": True}
