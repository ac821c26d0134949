"""Fewer GPUs for pods with ResourceClaims: which template they get, and when there is none."""

import json
import re
from typing import Any

import pytest

from rightsizer.kinds.change_edits import missing_field_reason
from rightsizer.kinds.claim_templates import object_for, smaller
from rightsizer.model import Action, ClaimTemplate, Proposal, Workload
from rightsizer.report.manifest_patches import patch_files
from tests.rightsizer.build import AT
from tests.rightsizer.kubectl import TEAM, Object, claim, obj, pod, using, workloads_of
from tests.rightsizer.report.test_manifest_patches import decision_of, plan_of

TWO = Proposal(Action.RESIZE, 2.0, "each pod needs 2 of its 4 GPUs", gpus_per_pod=2)
GPUS: Object = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}
NIC: Object = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com", "count": 1}}


def _workload(*requests: Object, name: str = "four", **changes: Any) -> Workload:
    """A Deployment of two pods with four GPUs each, by claims of a template with these requests."""
    entries = changes.pop("entries", [{"name": "gpu", "resourceClaimTemplateName": name}])
    spec = {"template": {"spec": {"containers": [{"name": "main"}], "resourceClaims": entries}}}
    top = obj("Deployment", "serve", spec={**spec, **changes.pop("spec", {})})
    items = [top, obj("ResourceClaimTemplate", name, api_version="resource.k8s.io/v1", spec=_spec(*requests))]
    for number in range(2):
        own = using(made={"gpu": f"made-{number}"})
        own["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = name
        items += [claim(f"made-{number}", devices=4, users=[f"p-{number}"]), pod(f"p-{number}", top, **own)]
    return workloads_of(*items)["Deployment/serve"]


def _spec(*requests: Object, **others: Any) -> Object:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": {"requests": [*requests], **others}}}


def test_resize_names_a_copy_of_the_template_for_fewer_devices() -> None:
    """All else is as it was: labels of the claims, selectors, and requests for other devices."""
    selected = {**GPUS, "exactly": {**GPUS["exactly"], "selectors": [{"cel": {"expression": "true"}}]}}
    item = _workload(NIC, selected)
    assert missing_field_reason(item, TWO, AT) == ""
    (template,) = item.claim_templates
    made = smaller(template, TWO)
    fewer = {**selected, "exactly": {**selected["exactly"], "count": 2}}
    assert json.loads(made.spec) == _spec(NIC, fewer)
    assert made.name.startswith("four-2-")
    assert smaller(template, TWO) == made


def _resliced(profile: str, device_class: str = "mig.nvidia.com") -> Proposal:
    asks = ((f"deviceclass:{device_class}/{profile}", 1),)
    return Proposal(Action.RESLICE, 0.9, "a smaller one", asks=asks)


def _exactly(device_class: str, *expressions: str) -> Object:
    selectors = [{"cel": {"expression": one}} for one in expressions]
    return {"deviceClassName": device_class, **({"selectors": selectors} if selectors else {})}


_HALF = 'device.attributes["gpu.nvidia.com"].profile == "3g.40gb"'
_SEVENTH = 'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'


@pytest.mark.parametrize(
    ("before", "device_class", "after"),
    [
        (_exactly("gpu.nvidia.com"), "mig.nvidia.com", _exactly("mig.nvidia.com", _SEVENTH)),
        (_exactly("mig.nvidia.com", _HALF), "mig.nvidia.com", _exactly("mig.nvidia.com", _SEVENTH)),
        (_exactly("our-mig", _HALF), "our-mig", _exactly("our-mig", _SEVENTH)),
        (
            _exactly("mig.nvidia.com", _HALF.replace('"', "'")),
            "mig.nvidia.com",
            _exactly("mig.nvidia.com", _SEVENTH.replace('"', "'")),
        ),
    ],
    ids=["whole", "profile", "class-of-their-own", "single-quotes"],
)
def test_reslice_names_a_copy_of_the_template_for_a_smaller_device(
    before: Object, device_class: str, after: Object
) -> None:
    """Only the class, where it was a whole GPU, and the selector of the profile are others."""
    item = _workload({"name": "r", "exactly": before}, NIC)
    (template,) = item.claim_templates
    made = smaller(template, _resliced("1g.10gb", device_class))
    assert json.loads(made.spec) == _spec({"name": "r", "exactly": after}, NIC)
    assert made.name.startswith("four-1-")


@pytest.mark.parametrize(
    ("exactly", "asks"),
    [
        (_exactly("mig.nvidia.com"), "deviceclass:mig.nvidia.com/1g.10gb"),
        (_exactly("mig.nvidia.com", _HALF, "true"), "deviceclass:mig.nvidia.com/1g.10gb"),
        (_exactly("mig.nvidia.com", f"{_HALF} || true"), "deviceclass:mig.nvidia.com/1g.10gb"),
        (
            {**_exactly("gpu.nvidia.com"), "capacity": {"requests": {"memory": "70Gi"}}},
            "deviceclass:mig.nvidia.com/1g.10gb",
        ),
        (_exactly("gpu.nvidia.com", "true"), "deviceclass:mig.nvidia.com/1g.10gb"),
        (_exactly("gpu.nvidia.com"), "deviceclass:our-mig/1g.10gb"),
        (_exactly("gpu.nvidia.com"), "nvidia.com/mig-1g.10gb"),
    ],
)
def test_template_whose_profile_is_requested_otherwise_stays(exactly: Object, asks: str) -> None:
    """Nobody knows what a claim would get then."""
    item = _workload({"name": "r", "exactly": exactly})
    proposal = Proposal(Action.RESLICE, 0.9, "a smaller one", asks=((asks, 1),))
    assert re.search(
        "does not request a whole GPU, or a MIG device by its profile alone|only for whole GPUs or MIG devices",
        missing_field_reason(item, proposal, AT),
    )


@pytest.mark.parametrize(
    "others",
    [
        {"constraints": [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]},
        {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}]},
    ],
    ids=["constraints", "config"],
)
def test_template_with_more_than_its_request_is_not_for_a_smaller_device(others: Object) -> None:
    """A MIG device may lack the attribute, and a driver refuses the config of another kind of device."""
    made = ClaimTemplate(
        "four",
        json.dumps(_spec({"name": "r", "exactly": _exactly("gpu.nvidia.com")}, **others)).encode(),
        "u",
        "r",
        1,
    )
    with pytest.raises(ValueError, match="has constraints or a config"):
        smaller(made, _resliced("1g.10gb"))
    four = ClaimTemplate("four", json.dumps(_spec(GPUS, **others)).encode(), "u", "r", 4)
    assert smaller(four, TWO).count == 2


def test_smaller_template_belongs_to_one_workload() -> None:
    """It goes with its workload, so no other may need it."""
    one = ClaimTemplate("four", json.dumps(_spec(GPUS)).encode(), "uid-a", "r", 4)
    other = ClaimTemplate("four", json.dumps(_spec(GPUS)).encode(), "uid-b", "r", 4)
    assert smaller(one, TWO).name != smaller(other, TWO).name


@pytest.mark.parametrize(
    ("item", "words"),
    [
        pytest.param(
            _workload(
                {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}}
            ),
            "its ResourceClaimTemplate four has no single request for a number of GPUs",
            id="all-of-a-node",
        ),
        pytest.param(
            _workload({"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "gpu.nvidia.com"}]}),
            "its ResourceClaimTemplate four has no single request for a number of GPUs",
            id="alternatives",
        ),
        pytest.param(
            _workload({"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}),
            "its ResourceClaimTemplate four requests 2 GPUs, not more than 2",
            id="already-so-few",
        ),
        pytest.param(
            _workload(GPUS, entries=[{"name": "gpu", "resourceClaimTemplateName": "other"}]),
            "none of its resourceClaims names a ResourceClaimTemplate that its pods got GPUs by",
            id="rolled-out-by-half",
        ),
        pytest.param(
            _workload(GPUS, entries=[{"name": name, "resourceClaimTemplateName": "four"} for name in "ab"]),
            "more than one of its resourceClaims names a ResourceClaimTemplate that its pods got GPUs by",
            id="twice",
        ),
        pytest.param(
            _workload(GPUS, entries=[{"name": "gpu", "resourceClaimName": "shared"}]),
            "none of its resourceClaims names a ResourceClaimTemplate that its pods got GPUs by",
            id="one-claim-for-all",
        ),
        pytest.param(
            _workload(GPUS, name="x" * 201),
            f"the name of its ResourceClaimTemplate {'x' * 201} is longer than 200 characters",
            id="long-name",
        ),
        pytest.param(
            _workload(
                GPUS, spec={"paused": True}, entries=[{"name": "gpu", "resourceClaimTemplateName": "four"}]
            ),
            "its spec.paused is true: its pods stay as they are",
            id="paused",
        ),
    ],
)
def test_workload_whose_claims_cannot_shrink_says_why(item: Workload, words: str) -> None:
    """It gets advice only."""
    assert words in missing_field_reason(item, TWO, AT)


def test_patches_have_the_template_that_they_name() -> None:
    """Who keeps manifests in Git needs both."""
    item = _workload(GPUS)
    files, problems = patch_files(plan_of(decision_of(item, TWO)))
    assert problems == ()
    name = smaller(item.claim_templates[0], TWO).name
    assert f"resourceClaimTemplateName: {name}" in files[f"{TEAM}/deployment.apps-serve.yaml"]
    assert "count: 2" in files[f"{TEAM}/resourceclaimtemplate-{name}.yaml"]
    assert f"- resourceclaimtemplate-{name}.yaml" in files[f"{TEAM}/kustomization.yaml"]


def test_change_without_claims_needs_no_template() -> None:
    """Replicas and stops name none."""
    assert object_for([], _workload(GPUS), None) is None
