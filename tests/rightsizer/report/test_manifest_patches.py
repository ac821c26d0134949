"""Patches of manifests: Kustomize applies them, they change only what the plan says, and what has none is named."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rightsizer.model import (
    Action,
    Blocker,
    BlockerCode,
    Decision,
    Manager,
    ObjectRef,
    Plan,
    Pod,
    Proposal,
    Verdict,
    Workload,
)
from rightsizer.report.manifest_patches import patch_files
from simulator.controlplane import programs
from tests.rightsizer.build import AT, judged, pod, policy, workload
from tests.rightsizer.commands import run_command

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
RESIZE = Proposal(Action.RESIZE, 1.0, "each pod needs 1 of its 2 GPUs", gpus_per_pod=1)
RESLICE = Proposal(Action.RESLICE, 0.9, "a slice", asks=((SLICE, 1),))
FEWER = Proposal(Action.SCALE_DOWN, 1.0, "1 replica", replicas=1, pods=("w-0",))


def _template(**spec: Any) -> Object:
    """A template whose second container asks for two GPUs."""
    amounts = {GPU: "2", "cpu": "4"}
    main = {"name": "main", "image": "i", "resources": {"limits": amounts, "requests": dict(amounts)}}
    return {"spec": {"containers": [{"name": "side", "image": "s"}, main], **spec}}


SPECS: dict[str, Object] = {
    "apps/v1/Deployment": {"replicas": 2, "template": _template()},
    "apps/v1/StatefulSet": {"replicas": 2, "podManagementPolicy": "OrderedReady", "template": _template()},
    "batch/v1/Job": {"parallelism": 2, "template": _template()},
    "argoproj.io/v1alpha1/Rollout": {"replicas": 2, "template": _template()},
    "kubeflow.org/v1/PyTorchJob": {
        "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": _template()}}
    },
    "kubeflow.org/v1/Notebook": {"template": _template()},
    "ray.io/v1/RayCluster": {
        "workerGroupSpecs": [
            {"groupName": "cpu", "replicas": 1, "template": {}},
            {"groupName": "gpu", "replicas": 2, "minReplicas": 2, "template": _template()},
        ]
    },
}


def _decision(kind: str, proposal: Proposal | None, **changes: Any) -> Decision:
    version, _, name = kind.rpartition("/")
    pods = [pod(f"w-{n}", devices=2, resources={GPU: 2}, labels={"ray.io/group": "gpu"}) for n in range(2)]
    ref = ObjectRef(version, name, "research", "w.1", "uid-w")
    given = {"ref": ref, "spec": json.dumps(SPECS.get(kind, {"x": 1})).encode(), **changes}
    return decision_of(workload(*pods, **given), proposal)


def decision_of(item: Workload, proposal: Proposal | None) -> Decision:
    """A decision to act on a workload by a proposal."""
    decision = judged(item, {}, policy())
    finding = dataclasses.replace(
        decision.finding, verdict=Verdict.ACT, proposal=proposal, words=("2 of 4 GPUs\n- worked",)
    )
    return dataclasses.replace(decision, verdict=Verdict.ACT, finding=finding)


def _of(decision: Decision, pods: tuple[Pod, ...]) -> Decision:
    return dataclasses.replace(decision, workload=dataclasses.replace(decision.workload, pods=pods))


def plan_of(*decisions: Decision) -> Plan:
    """A plan of these decisions."""
    return Plan(AT, "run", "policy", "0" * 64, decisions)


def _built(tmp_path: Path, kind: str, spec: Object, files: dict[str, str]) -> Object:
    """The manifest as Kustomize builds it with the written component, in an overlay that sets the namespace."""
    version, _, name = kind.rpartition("/")
    manifest = {"apiVersion": version, "kind": name, "metadata": {"name": "w.1"}, "spec": spec}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(manifest))
    overlay = {"namespace": "research", "resources": ["w.yaml"], "components": ["research"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    program = programs.find((programs.KUSTOMIZE,))["kustomize"]
    run = subprocess.run([program, "build", tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    built: Object = yaml.safe_load(run.stdout)
    return built


def _amounts(found: Any) -> list[Object]:
    """All resources of containers, wherever they are."""
    if isinstance(found, list):
        return [one for item in found for one in _amounts(item)]
    if not isinstance(found, dict):
        return []
    here = [found["resources"]] if "resources" in found else []
    return here + [one for value in found.values() for one in _amounts(value)]


@pytest.mark.kustomize
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(
    ("proposal", "amounts"),
    [(RESIZE, {GPU: "1", "cpu": "4"}), (RESLICE, {SLICE: "1", "cpu": "4"})],
    ids=["resize", "reslice"],
)
def test_patch_kustomize_changes_only_gpu_amounts(
    tmp_path: Path, kind: str, proposal: Proposal, amounts: Object
) -> None:
    """Of the container that asks for them, in each kind of which a template is known; all else stays."""
    files, problems = patch_files(plan_of(_decision(kind, proposal)))
    assert problems == ()
    built = _built(tmp_path, kind, SPECS[kind], dict(files))
    assert _amounts(built) == [{"limits": amounts, "requests": amounts}]
    before, after = json.dumps(SPECS[kind], sort_keys=True), json.dumps(built["spec"], sort_keys=True)
    for resources in ({GPU: "2", "cpu": "4"}, amounts):
        text = json.dumps(resources, sort_keys=True)
        before, after = before.replace(text, "X"), after.replace(text, "X")
    assert sorted(before) == sorted(after)  # Kustomize puts patched items of lists first


@pytest.mark.kustomize
@pytest.mark.parametrize(
    ("kind", "proposal", "changed"),
    [
        ("apps/v1/Deployment", None, {"replicas": 0}),
        ("apps/v1/Deployment", FEWER, {"replicas": 1}),
        ("argoproj.io/v1alpha1/Rollout", FEWER, {"replicas": 1}),
        ("batch/v1/Job", None, {"suspend": True}),
        (
            "ray.io/v1/RayCluster",
            FEWER,
            {
                "workerGroupSpecs": [
                    SPECS["ray.io/v1/RayCluster"]["workerGroupSpecs"][0],
                    {**SPECS["ray.io/v1/RayCluster"]["workerGroupSpecs"][1], "replicas": 1, "minReplicas": 1},
                ]
            },
        ),
    ],
)
def test_patch_kustomize_sets_replicas_or_stop(
    tmp_path: Path, kind: str, proposal: Proposal | None, changed: Object
) -> None:
    """Names of pods are nothing for a manifest."""
    files, problems = patch_files(plan_of(_decision(kind, proposal)))
    assert problems == ()
    assert _built(tmp_path, kind, SPECS[kind], dict(files))["spec"] == {**SPECS[kind], **changed}


def test_patch_of_cron_jobs_run_changes_cron_job_once() -> None:
    """The template of the next run is there; of a second run of it there is no second patch."""
    starter = ObjectRef("batch/v1", "CronJob", "research", "nightly", "uid-c")
    run = _decision("batch/v1/Job", RESIZE, starter=starter)
    files, problems = patch_files(plan_of(run, run))
    assert (sorted(files), problems) == (
        ["research/cronjob.batch-nightly.yaml", "research/kustomization.yaml"],
        (),
    )
    patch = yaml.safe_load(files["research/cronjob.batch-nightly.yaml"])
    (container,) = patch["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "main", "resources": {"limits": {GPU: "1"}, "requests": {GPU: "1"}}}
    (one,) = yaml.safe_load(files["research/kustomization.yaml"])["patches"]
    assert one["target"] == {"group": "batch", "version": "v1", "kind": "CronJob", "name": "nightly"}


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        (
            "apps/v1/Deployment",
            "kubectl -n research patch deployment.apps w.1 --type strategic --patch-file ",
        ),
        (
            "argoproj.io/v1alpha1/Rollout",
            "kubectl -n research patch rollout.argoproj.io w.1 --type json --patch",
        ),
        ("batch/v1/Job", "the running Job cannot be changed: for the next one"),
    ],
)
def test_patch_head_says_evidence_fields_and_command(kind: str, command: str) -> None:
    """As comments, in which line breaks of others end nothing."""
    files, _ = patch_files(plan_of(_decision(kind, RESIZE)))
    (text,) = (text for name, text in files.items() if not name.endswith("kustomization.yaml"))
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert head[1].startswith("# 2 of 4 GPUs")
    assert head[1].endswith("- worked")
    assert any("limits[nvidia.com/gpu]: 2 -> 1" in line for line in head)
    assert head[-1].startswith(f"# {command}")


HPA = Manager("HorizontalPodAutoscaler", "w", scales=True)
CRON = ObjectRef("argoproj.io/v1alpha1", "CronWorkflow", "research", "c", "uid-c")


_GROVE = (pod(labels={"grove.io/podclique": "w-0-decode"}),)


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (_decision("apps/v1/Deployment", FEWER, managers=(HPA,)), "an autoscaler decides how many"),
        (_of(_decision("nvidia.com/v1alpha1/DynamoGraphDeployment", None), _GROVE), "Grove runs it"),
        (_decision("batch/v1/Job", None, starter=CRON), "CronWorkflow c made it"),
        (_decision("batch/v1/Job", RESIZE, starter=CRON), "CronWorkflow c made it"),
        (_decision("v1/Pod", None), "no field of its manifest stops it"),
        (_decision("batch.volcano.sh/v1alpha1/Job", None), "no field of its manifest stops it"),
        (_decision("example.com/v1/Thing", None), "Thing is not a kind that gpu-rightsizer changes"),
        (_decision("apps/v1/Deployment", RESIZE, spec=b""), "its object could not be read"),
        (_decision("v1/Pod", RESIZE, spec=b""), "a Pod has no template"),
        (_decision("serving.kserve.io/v1beta1/InferenceService", RESIZE), "none of its containers declares"),
        (
            _decision(
                "apps/v1/Deployment", RESIZE, ref=ObjectRef("apps/v1", "Deployment", "../etc", "w", "")
            ),
            "is not a kind",
        ),
    ],
    ids=lambda value: "" if isinstance(value, Decision) else value,
)
def test_patch_without_field_of_manifest_is_named(decision: Decision, words: str) -> None:
    """No file is written for it, and the reason is reported."""
    files, (problem,) = patch_files(plan_of(decision))
    assert files == {}
    assert problem.startswith(f"no patch for {decision.workload.ref}: ")
    assert words in problem


def test_patch_of_workload_to_keep_is_not_written() -> None:
    """Only what the plan finds too large has one."""
    kept = dataclasses.replace(_decision("apps/v1/Deployment", RESIZE), verdict=Verdict.KEEP)
    assert patch_files(plan_of(kept)) == ({}, ())


def test_plan_patches_into_folder_with_files_is_refused(tmp_path: Path) -> None:
    """Before anything is read: a manifest may still need patches of an earlier plan."""
    (tmp_path / "mine.yaml").write_text("{}")
    run = run_command("plan", "--patches", str(tmp_path))
    assert (run.code, run.err) == (
        2,
        f'error: --patches "{tmp_path}": is not empty; name a new folder\n',
    )
    assert run_command("plan", "--patches", str(tmp_path / "mine.yaml")).code == 2


def test_patch_of_announced_change_is_left_out() -> None:
    """Merged at once, it would free the GPUs before the owner was asked, or was idle for long enough."""
    decision = _decision("apps/v1/Deployment", None)
    noticed = dataclasses.replace(decision, action=Action.NOTICE, announced=Action.SCALE_TO_ZERO, due=AT)
    block = Blocker(BlockerCode.NOTICE, "notice was given", until=AT)
    for waiting in (noticed, dataclasses.replace(decision, blockers=(block,))):
        files, problems = patch_files(plan_of(waiting))
        assert not files
        words = "its owner is asked first; the change follows from 2026-11-21 12:00 UTC"
        assert problems == (f"no patch for {decision.workload.ref}: {words}",)
    paused = dataclasses.replace(decision, blockers=(Blocker(BlockerCode.PAUSED, "later", until=AT),))
    assert patch_files(plan_of(paused))[0]
