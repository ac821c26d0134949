"""What a plan says that a stop costs."""

import dataclasses

import pytest

from rightsizer.kinds import KINDS
from rightsizer.kinds.advice import stopping
from rightsizer.model import FindingName, Manager, ObjectRef
from tests.rightsizer.build import all_idle, fleet, judged, pod, policy, workload

NOBODY = "no request wakes it: its owner or gpu-rightsizer undo starts it again"
HPA = Manager("HorizontalPodAutoscaler", "w", scales=True)


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
            "the next request waits for a new pod",
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
    lost = stopping(dataclasses.replace(decision, finding=finding), fleet(item)).lost
    assert words in lost
    assert (NOBODY in lost) is (words == NOBODY)


def test_lost_says_who_wakes_idle_server_that_is_recognised() -> None:
    """By its image, arguments or ports: of other idle workloads it says nothing."""
    for image, is_said in (("vllm/vllm-openai:v1", True), ("team/train", False)):
        item = workload(
            pod(), spec=b'{"template": {"spec": {"containers": [{"image": "%s"}]}}}' % image.encode()
        )
        lost = stopping(judged(item, all_idle(item), policy()), fleet(item)).lost
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
    lost = stopping(judged(item, all_idle(item), policy()), fleet(item)).lost
    assert ("minReplicas: 0 instead lets Knative free its GPUs" in lost) is is_said


def test_lost_by_paused_scaled_object_says_that_no_trigger_wakes() -> None:
    """paused-replicas holds the target at zero, whatever its triggers say."""
    keda = Manager("KEDA", "w", scales=True)
    by = ObjectRef("keda.sh/v1alpha1", "ScaledObject", "research", "w", "uid-s")
    item = workload(pod(), managers=(keda,), control_object=by)
    lost = stopping(judged(item, all_idle(item), policy()), fleet(item)).lost
    assert "by ScaledObject w: memory of its target's pods; no trigger starts them while it is paused" in lost


def test_kinds_whose_loss_names_requests_say_whether_one_wakes_them() -> None:
    """The sentence and the field of a row cannot differ."""
    said = {row.kind: "no request" not in row.lost for row in KINDS if "request" in row.lost}
    assert said == {row.kind: row.wakes for row in KINDS if row.wakes is not None}
    unwoken = ("InferenceService", "LLMInferenceService", "DynamoGraphDeployment")
    assert said == {**dict.fromkeys(unwoken, False), "Service": True}
