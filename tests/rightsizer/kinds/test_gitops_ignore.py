"""What other tools are told to leave alone: the fields that a change is really about."""

import dataclasses

import pytest

from rightsizer.kinds.advice import exception_for
from rightsizer.model import Action, Manager, ObjectRef, Proposal, Verdict
from tests.rightsizer.build import judged, pod, policy, workload

ARGO = Manager("Argo CD", "shop", reverts=True, exception="    jsonPointers: [/spec/replicas]\n  syncPolicy:")
OWNED = Manager("Argo CD", "shop", reverts=True, exception="    managedFieldsManagers: [gpu-rightsizer]")
FLUX = Manager("Flux", "apps", reverts=True, exception='    - paths: ["/spec/replicas"]\n      target: {}')
FEWER = Proposal(Action.RESIZE, 1.0, "", replicas=1)
SMALLER = Proposal(Action.RESIZE, 1.0, "", gpus_per_pod=1)
SLICE = Proposal(Action.RESLICE, 1.0, "", asks=(("nvidia.com/mig-1g.10gb", 1),))
TEMPLATE = "spec.template.spec.containers"


@pytest.mark.parametrize(
    ("kind", "manager", "proposal", "fields"),
    [
        pytest.param("apps/v1/Deployment", ARGO, None, "jsonPointers: [/spec/replicas]", id="stop"),
        pytest.param("apps/v1/Deployment", ARGO, FEWER, "jsonPointers: [/spec/replicas]", id="fewer"),
        pytest.param(
            "apps/v1/Deployment", ARGO, SLICE, f'jqPathExpressions: [".{TEMPLATE}[].resources"]', id="a-slice"
        ),
        pytest.param(
            "batch/v1/Job",
            ARGO,
            SMALLER,
            f'jqPathExpressions: [".spec.suspend", ".{TEMPLATE}[].resources"]',
            id="stopped-to-be-smaller",
        ),
        pytest.param(
            "kubeflow.org/v1/Notebook",
            OWNED,
            None,
            "jsonPointers: [/metadata/annotations/kubeflow-resource-stopped]",
            id="an-annotation",
        ),
        pytest.param(
            "ray.io/v1/RayCluster",
            ARGO,
            FEWER,
            '".spec.workerGroupSpecs[].replicas"',
            id="workers-of-groups",
        ),
        pytest.param(
            "nvidia.com/v1alpha1/DynamoGraphDeployment",
            ARGO,
            None,
            'jqPathExpressions: [".spec.services[].replicas"]',
            id="every-service",
        ),
        pytest.param(
            "nvidia.com/v1alpha1/DynamoGraphDeployment",
            FLUX,
            None,
            'paths: ["/spec/services"]',
            id="flux-map",
        ),
        pytest.param("apps/v1/Deployment", FLUX, None, 'paths: ["/spec/replicas"]', id="flux-stop"),
        pytest.param(
            "apps/v1/Deployment", FLUX, SLICE, 'paths: ["/spec/template/spec/containers"]', id="flux-slice"
        ),
    ],
)
def test_gitops_ignore_lists_changed_fields_as_pointer_or_jq(
    kind: str, manager: Manager, proposal: Proposal | None, fields: str
) -> None:
    """Of a list a JSON pointer names the whole, and jq what is in its items; all else of the words stays."""
    version, _, name = kind.rpartition("/")
    item = workload(pod(), ref=ObjectRef(version, name, "research", "w", "uid-w"))
    decision = judged(item, {}, policy())
    finding = dataclasses.replace(decision.finding, verdict=Verdict.ACT, proposal=proposal)
    found = exception_for(manager, dataclasses.replace(decision, finding=finding))
    assert fields in found
    assert found.splitlines()[1:] == manager.exception.splitlines()[1:]


def test_gitops_ignore_without_action_keeps_text() -> None:
    """There are no fields to name."""
    decision = judged(workload(), {}, policy())
    assert exception_for(ARGO, decision) == ARGO.exception
