"""The chart installs valid objects on each platform and in each mode, and rejects invalid values by name."""

import json
import re
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml

from exporter import settings
from rightsizer.cli.options import OutputOptions, ScheduleOptions, SessionOptions, flags_of
from rightsizer.model import PriorityClass
from rightsizer.policy.classes import read_class
from tests.deploy.chart import (
    ACTING,
    CHART,
    EVERYTHING,
    Object,
    exporter,
    find_one,
    helm,
    notes,
    pod_of,
    refused,
    render,
    rightsizer,
)
from tests.deploy.podsecurity import beyond_restricted

pytestmark = pytest.mark.helm

ROOT = CHART.parents[2]
NEWEST, OLDEST = "1.37", "1.34"
"""The newest known minor release of Kubernetes, and the oldest that vendors support."""
PLATFORMS = tuple(yaml.load((CHART / "files" / "platforms.yaml").read_text(), Loader=yaml.CSafeLoader))
NO_SCHEMA = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "SecurityContextConstraints"}
"""Third-party kinds without a Kubernetes schema; `make check-monitors` checks the monitors."""


def _valid(objects: list[Object], version: str) -> None:
    for one in objects:
        if one["kind"] not in NO_SCHEMA:
            kubernetes_validate.validate(one, version, strict=True)


def test_chart_passes_helm_lint() -> None:
    """Warnings are errors; also with every option set."""
    for values in ({}, EVERYTHING):
        done = helm("lint", "--strict", str(CHART), values=values)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("version", [NEWEST, OLDEST])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_chart_with_each_platform_renders_valid_objects(platform: str, version: str) -> None:
    """By Kubernetes's schemas, without unknown fields."""
    _valid(render({"platform": platform, "rightsizer": ACTING}), version)


@pytest.mark.slow
@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_chart_with_all_options_renders_valid_objects(version: str) -> None:
    """Every option, with a Deployment and with a PodMonitor."""
    objects = render(EVERYTHING)
    _valid(objects, version)
    monitoring = {**EVERYTHING["monitoring"], "serviceMonitor": {}, "podMonitor": {"enabled": True}}
    kinds = {one["kind"] for one in [*objects, *render({**EVERYTHING, "monitoring": monitoring})]}
    assert kinds >= {"PodDisruptionBudget", "NetworkPolicy", "ResourceQuota", *NO_SCHEMA}


def test_chart_by_default_only_advises() -> None:
    """Without values: a DaemonSet, a CronJob that runs plan, and no permission to change workloads."""
    objects = render()
    container = pod_of(find_one(objects, "CronJob"))["containers"][0]
    assert (container["command"], container["args"]) == (["gpu-rightsizer"], ["plan", "--output", "table"])
    kinds = sorted({one["kind"] for one in objects})
    assert kinds == [
        *(
            "ClusterRole",
            "ClusterRoleBinding",
            "CronJob",
            "DaemonSet",
            "NetworkPolicy",
            "Role",
            "RoleBinding",
        ),
        *("Service", "ServiceAccount"),
    ]


@pytest.mark.parametrize(
    ("given", "args"),
    [
        pytest.param({}, ["plan", "--output", "table"], id="advise"),
        pytest.param({**ACTING}, ["apply", "--yes", "--verify-for", "60s", "--output", "table"], id="act"),
        pytest.param({"mode": "deployment"}, ["run"], id="deployment"),
        pytest.param(
            {**ACTING, "mode": "deployment"},
            ["run", "--yes", "--verify-for", "60s"],
            id="deployment-act",
        ),
    ],
)
def test_rightsizer_command_follows_values(given: Object, args: list[str]) -> None:
    """--yes is set only if rightsizer.act is true."""
    assert rightsizer(**given)["containers"][0]["args"] == args


def test_run_flags_all_have_a_chart_value() -> None:
    """As variable or argument; others have no use in a pod, or another value sets them."""
    given = EVERYTHING["rightsizer"]
    container = rightsizer(**given)["containers"][0]
    token = rightsizer(prometheus={"tokenFile": "/token"})["containers"][0]
    set_here = {entry["name"] for one in (container, token) for entry in one["env"]}
    options = (*SessionOptions.__mro__, ScheduleOptions, OutputOptions)
    flags = [flag for one in options for flag in flags_of(one) if flag.has_variable]
    missing = {flag.flag for flag in flags if flag.variable not in set_here}
    assert missing == {"--kubeconfig", "--context", "--every"}
    assert {"--prometheus-header", "--prometheus-label", "--verify-for"} <= set(container["args"])


@pytest.mark.parametrize(
    ("exporter", "given", "names"),
    [
        pytest.param(True, [], "gpu-rightsizer", id="own"),
        pytest.param(True, ["gpu-operator"], "gpu-rightsizer,gpu-operator", id="own-and-dcgm-exporter"),
        pytest.param(False, ["gpu-operator"], "gpu-operator", id="dcgm-exporter"),
        pytest.param(False, [], None, id="detected"),
    ],
)
def test_exporter_namespaces_are_those_of_the_release_and_the_given(
    given: list[str], names: str | None, *, exporter: bool
) -> None:
    """Series of pods elsewhere are no evidence."""
    values = {
        "exporter": {"enabled": exporter},
        "rightsizer": {"prometheus": {"exporterNamespaces": given}},
    }
    (owner,) = [one for one in render(values, only=["rightsizer"]) if one["kind"] == "CronJob"]
    variables = {one["name"]: one["value"] for one in pod_of(owner)["containers"][0]["env"]}
    assert variables.get("GPU_RIGHTSIZER_EXPORTER_NAMESPACE") == names


def test_exporter_flags_all_have_a_chart_value_and_parse() -> None:
    """The exporter parses the chart's variables; others have no use in a pod."""
    container = exporter(EVERYTHING, **EVERYTHING["exporter"])["containers"][0]
    variables = {entry["name"]: entry.get("value", "node-1") for entry in container["env"]}
    ours = {name for name in variables if name.startswith("GPU_EXPORTER_")}
    known = {settings.variable(name): name for name in settings.all_settings()}
    assert ours <= set(known)
    left_out = {settings.flag(known[name]) for name in set(known) - ours}
    assert left_out == {
        *("--metrics-file", "--kubeconfig", "--once", "--proc-root", "--pod-logs", "--pod-resources-socket"),
        "--replace-blanks-in-model-name",
    }


WINS: Mapping[str, tuple[str, Object, tuple[str | int, ...], Any]] = {
    "labels": ("gke", {"nodeSelector": {"a": "b"}}, ("nodeSelector",), {"a": "b"}),
    "labels-not-affinity": (
        "gke",
        {"nodeSelector": {"a": "b"}, "pauseForGpuOperator": False},
        ("affinity",),
        None,
    ),
    "no-labels": ("", {"nodeSelector": {}}, ("nodeSelector",), None),
    "taints": ("aks", {"tolerations": [{"operator": "Exists"}]}, ("tolerations",), [{"operator": "Exists"}]),
    "no-taints": ("aks", {"tolerations": []}, ("tolerations",), None),
    "no-runtime-class": ("gpu-operator", {"runtimeClassName": ""}, ("runtimeClassName",), None),
    "runtime-class": ("oke", {"runtimeClassName": "nvidia"}, ("runtimeClassName",), "nvidia"),
    "not-privileged": (
        "gke",
        {"gpuAccess": "runtime"},
        ("containers", 0, "securityContext", "privileged"),
        False,
    ),
    "selinux": (
        "openshift",
        {"seLinuxType": ""},
        ("containers", 0, "securityContext", "seLinuxOptions"),
        None,
    ),
}


@pytest.mark.parametrize("name", WINS)
def test_user_value_overrides_platform_preset(name: str) -> None:
    """Also an empty value; a nodeSelector or affinity of the user replaces both."""
    platform, given, path, expected = WINS[name]
    found: Any = exporter({"platform": platform}, **given)
    for step in path:
        found = found[step] if isinstance(step, int) else found.get(step)
    assert found == expected


def test_platform_selects_gpu_nodes_and_tolerates_taints() -> None:
    """Three presets that differ most."""
    platforms = ("gke", "aks", "gpu-operator")
    pods = {name: exporter({"platform": name}, pauseForGpuOperator=False) for name in platforms}
    terms = pods["gke"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "cloud.google.com/gke-accelerator", "operator": "Exists"}]}
    ]
    assert {"key": "sku", "operator": "Equal", "value": "gpu"} in pods["aks"]["tolerations"]
    assert pods["gpu-operator"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert pods["gpu-operator"]["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("create", [None, True, False])
def test_security_context_constraints_exist_on_openshift_or_if_set(
    platform: str, create: bool | None
) -> None:
    """OpenShift needs them; true and false override the platform, null does not."""
    values = {"platform": platform, "exporter": {"securityContextConstraints": {"create": create}}}
    found = [one for one in render(values) if one["kind"] == "SecurityContextConstraints"]
    assert len(found) == (platform == "openshift" if create is None else create)
    for one in found:
        assert one["users"] == ["system:serviceaccount:gpu-rightsizer:gpu-rightsizer-exporter"]
        assert (one["allowHostPID"], one["seLinuxContext"]) == (False, {"type": "RunAsAny"})


def test_node_pools_add_nodes_and_tolerations() -> None:
    """Adds nodes with the platform's RDMA label."""
    pool = {"name": "rdma", "rdma": True, "nodeSelector": {"a": "b"}, "tolerations": [{"key": "team"}]}
    pod = exporter({"platform": "oke", "nodePools": [pool]}, pauseForGpuOperator=False)
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][-1] == {
        "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["b"]},
            {"key": "oci.oraclecloud.com/rdma.local_block_id", "operator": "Exists"},
        ]
    }
    assert len(terms["nodeSelectorTerms"]) == 3
    assert pod["tolerations"][-1] == {"key": "team"}
    labelled = exporter({"nodePools": [pool]})
    first = labelled["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert first["nodeSelectorTerms"][0]["matchExpressions"][0]["key"] == "nvidia.com/gpu.present"
    assert "nodeSelector" not in labelled


ALWAYS = {"hostPath /var/lib/kubelet/pod-resources", "runAsNonRoot", "runAsUser 0"}
EXCEPTIONS: Mapping[str, tuple[str, Object, set[str]]] = {
    "as-it-is": ("", {}, set()),
    "attribution": (
        "",
        {"attribution": {"enabled": True}},
        {"hostPID", "hostPath /var/log/pods", "hostPath /var/log/containers"},
    ),
    "batch-system": ("", {"hpcJobMappingDir": "/var/jobs"}, {"hostPath /var/jobs"}),
    "labels-of-pods": ("", {"podLabels": ["team"]}, set()),
    "volume-mounts": ("eks", {"gpuAccess": "volume-mounts"}, {"hostPath /dev/null"}),
    "claim": ("gpu-operator-dra", {}, set()),
    "gke": (
        "gke",
        {},
        {
            "hostPath /home/kubernetes/bin/nvidia",
            "privileged",
            "allowPrivilegeEscalation",
            "capabilities",
        },
    ),
    "openshift": ("openshift", {}, {"seLinuxOptions"}),
}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exporter_pod_violates_pod_security_only_as_documented(name: str) -> None:
    """README.md lists each exception from Pod Security's restricted level."""
    platform, given, more = EXCEPTIONS[name]
    pod = exporter({"platform": platform}, **given)
    assert beyond_restricted(pod) == ALWAYS | more
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert all(mount["readOnly"] for mount in pod["containers"][0]["volumeMounts"])
    assert pod["automountServiceAccountToken"] is (name == "labels-of-pods")
    paths = [volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume]
    assert {path["type"] for path in paths} <= {"Directory", "CharDevice"}, "nothing is made on a node"
    readme = (CHART / "README.md").read_text()
    stated = (
        "/var/log/pods",
        "/var/log/containers",
        "hpcJobMappingDir",
        "/dev/null",
        "spc_t",
        "hostPID",
        "privileged",
        "root, without capabilities",
    )
    assert all(words in readme for words in stated)


def test_exporter_with_a_claim_observes_all_devices_without_the_runtime() -> None:
    """No variable for the NVIDIA runtime, and the pods of its own and the operator's claims hold nothing."""
    given = {"deviceClassName": "mig.nvidia.com"}
    objects = render({"platform": "gpu-operator-dra", "exporter": given}, only=["exporter"], namespace="gpus")
    (request,) = find_one(objects, "ResourceClaimTemplate", "gpu-rightsizer-exporter")["spec"]["spec"][
        "devices"
    ]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "mig.nvidia.com",
        "allocationMode": "All",
        "adminAccess": True,
        "tolerations": [{"operator": "Exists"}],
    }
    pod = pod_of(find_one(objects, "DaemonSet", "gpu-rightsizer-exporter"))
    (container,) = pod["containers"]
    assert container["resources"]["claims"] == [{"name": "gpus"}]
    assert container["resources"]["limits"], "the others stay"
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert "NVIDIA_VISIBLE_DEVICES" not in variables
    assert variables["GPU_EXPORTER_ADMIN_ACCESS_NAMESPACES"] == "gpu-operator,gpus"
    assert [one["kind"] for one in render(only=["exporter"]) if "Claim" in one["kind"]] == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_rightsizer_pod_passes_restricted_pod_security(platform: str) -> None:
    """On each platform, in both modes, with all mounts."""
    least: Object = {}
    for given in (least, EVERYTHING["rightsizer"]):
        objects = render({"platform": platform, "rightsizer": given}, only=["rightsizer"])
        (owner,) = [one for one in objects if one["kind"] in {"CronJob", "Deployment"}]
        pod = pod_of(owner)
        assert beyond_restricted(pod) == set()
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        assert ("runAsUser" in pod["securityContext"]) is (platform != "openshift")


ADVISING: Object = {
    "apiVersion": "gpu-rightsizer.io/v1alpha1",
    "kind": "Policy",
    "rules": [{"name": "all", "match": {"everything": True}, "mode": "advise"}],
}
WRONG: Mapping[str, tuple[Object, str]] = {
    "platform": ({"platform": "gcp"}, r"at '/platform': value must be one of .*'gke'"),
    "unknown": ({"exporter": {"namign": "dcgm"}}, r"at '/exporter': additional properties 'namign' not"),
    "top-level": ({"exportr": {}}, "additional properties 'exportr' not allowed"),
    "word": ({"exporter": {"naming": "dgcm"}}, r"'/exporter/naming': .*'dcgm', 'dcgm-4.9', 'both'"),
    "text-for-truth": ({"rightsizer": {"act": "yes"}}, r"'/rightsizer/act': got string, want boolean"),
    "duration": ({"exporter": {"interval": "10"}}, r"'/exporter/interval': '10' does not match pattern"),
    "url": ({"rightsizer": {"prometheus": {"url": "prom:9090"}}}, r"/prometheus/url': .* does not match"),
    "password-in-url": ({"rightsizer": {"prometheus": {"url": "http://a:b@c"}}}, "/prometheus/url"),
    "policy-field": (
        {
            "rightsizer": {
                "policy": {"apiVersion": "gpu-rightsizer.io/v1alpha1", "kind": "Policy", "rulse": []}
            }
        },
        r"at '/rightsizer/policy': additional properties 'rulse' not allowed",
    ),
    "policy-mode": (
        {
            "rightsizer": {
                "policy": {
                    "apiVersion": "gpu-rightsizer.io/v1alpha1",
                    "kind": "Policy",
                    "rules": [{"name": "a", "match": {"kinds": ["Job"]}, "mode": "protekt"}],
                }
            }
        },
        r"rules/0/mode': value must be one of 'protect', 'advise', 'enforce'",
    ),
    "annotation": (
        {"priorityClasses": {"levels": {"low": {"policy": {"idlewindow": "3h"}}}}},
        r"at '/priorityClasses/levels/low/policy': additional properties 'idlewindow'",
    ),
    "ledger-of-nobody": (
        {"rightsizer": {"ledger": {"bucket": "s3://gpus/ledger"}}},
        "rightsizer.ledger.clusterName is required",
    ),
    "ledger-in-two-places": (
        {"rightsizer": {"ledger": {"bucket": "s3://a/b", "existingClaim": "c", "clusterName": "d"}}},
        "rightsizer.ledger has both bucket and existingClaim",
    ),
    "act-on-whose-word": ({"rightsizer": {"act": True}}, "rightsizer.prometheus.url is required"),
    "act-on-what": (
        {"rightsizer": {"act": True, "prometheus": {"url": "http://p"}}},
        "rightsizer.policy and priorityClasses.gpus are both empty; write rules",
    ),
    "classes-nobody-asks": (
        {
            "rightsizer": {**ACTING, "policy": ADVISING},
            "priorityClasses": {"gpus": [{"name": "h100"}]},
        },
        "rule all of rightsizer.policy matches everything and comes first, so the PriorityClasses .* write class",
    ),
    "output": ({"rightsizer": {**ACTING, "output": "csv"}}, "rightsizer.output is csv, which plan supports"),
    "report": (
        {"rightsizer": {"ledger": {"serveReport": True}}},
        "rightsizer.ledger.serveReport needs a bucket or existingClaim",
    ),
    "jitter": ({"rightsizer": {"jitter": "1m"}}, "rightsizer.jitter needs rightsizer.mode deployment"),
    "budget": (
        {"podDisruptionBudget": {"enabled": True}},
        "podDisruptionBudget.enabled needs rightsizer.mode deployment",
    ),
    "credentials": (
        {"rightsizer": {"prometheus": {"tokenFile": "/t", "user": "me"}}},
        "has both tokenFile and user; leave one",
    ),
    "twice": (
        {"monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        "each GPU would count twice",
    ),
    "alerts-alone": (
        {"monitoring": {"rules": {"alerts": {"enabled": True}}}},
        "alerts needs monitoring.rules.dashboard, because GpuAllocatedIdle queries its series; enable both",
    ),
    "twice-by-annotations": (
        {"monitoring": {"podMonitor": {"enabled": True}, "scrapeAnnotations": {"enabled": True}}},
        "monitoring.podMonitor and monitoring.scrapeAnnotations are both enabled, so each GPU would count",
    ),
    "deadline": (
        {"monitoring": {"serviceMonitor": {"enabled": True, "interval": "1m30s", "scrapeTimeout": "91s"}}},
        "monitoring.serviceMonitor.scrapeTimeout is 91s, longer than its interval of 1m30s",
    ),
    "nobodys-account": (
        {"serviceAccount": {"create": False}},
        "serviceAccount.create is false, so serviceAccount.name is required",
    ),
    "label-of-all": (
        {"commonLabels": {"app.kubernetes.io/name": "x"}},
        "commonLabels has the label app.kubernetes.io/name, which the chart sets itself",
    ),
    "label-of-pods": (
        {"exporter": {"extraPodLabels": {"app.kubernetes.io/instance": "x"}}},
        "exporter.extraPodLabels has the label app.kubernetes.io/instance, which the chart sets itself",
    ),
    "action": (
        {"priorityClasses": {"levels": {"low": {"policy": {"mode": "enforce", "actions": "explode"}}}}},
        r"at '/priorityClasses/levels/low/policy/actions': 'explode' does not match pattern .*scale-to-zero",
    ),
    "window": (
        {"priorityClasses": {"levels": {"low": {"policy": {"mode": "enforce", "idle-window": "12"}}}}},
        r"/policy/idle-window': '12' does not match pattern",
    ),
    "schedule": (
        {"rightsizer": {"mode": "deployment", "schedule": "every hour"}},
        r"at '/rightsizer/schedule': 'every hour' does not match pattern .*@\(yearly",
    ),
    "zone": (
        {"rightsizer": {"mode": "deployment", "timeZone": "+02:00"}},
        r"at '/rightsizer/timeZone': '\+02:00' does not match pattern",
    ),
    "no-service": (
        {"monitoring": {"serviceMonitor": {"enabled": True}}, "exporter": {"service": {"enabled": False}}},
        "monitoring.serviceMonitor needs the exporter's Service",
    ),
    "quota": (
        {"resourceQuotas": [{"namespace": "a", "gpu": "h100", "low": {"pods": 1}}]},
        "has gpu h100 in namespace a, which is not in priorityClasses.gpus",
    ),
    "model-twice": (
        {"priorityClasses": {"gpus": [{"name": "a"}, {"name": "a", "about": "b"}]}},
        "names a twice",
    ),
    "empty-pool": ({"nodePools": [{"name": "a"}]}, "pool a needs nodeSelector, matchExpressions or rdma"),
    "pool-of-what": ({"nodePools": [{"name": "a", "rdma": True, "gpu": "b"}]}, "gpu b in pool a, which"),
    "driver-root": ({"exporter": {"gpuAccess": "host"}}, "exporter.driverRoot is required: the directory"),
    "relative-root": (
        {"exporter": {"driverRoot": "usr/lib"}},
        r"at '/exporter/driverRoot': 'usr/lib' does not match",
    ),
    "too-often": (
        {"exporter": {"interval": "0s"}},
        "exporter.interval is 0s; it must be between 100ms and 1h",
    ),
    "too-seldom": (
        {"exporter": {"interval": "61m"}},
        "exporter.interval is 61m; it must be between 100ms",
    ),
    "given-up-late": (
        {"exporter": {"giveUpAfter": "2h"}},
        "exporter.giveUpAfter is 2h; it must be between 100ms and 1h",
    ),
    "no-time": (
        {"rightsizer": {"prometheus": {"timeout": "0s"}}},
        "prometheus.timeout is 0s; it must be longer",
    ),
    "no-time-to-verify": (
        {"rightsizer": {"verifyFor": "0m"}},
        "rightsizer.verifyFor is 0m; it must be longer",
    ),
    "token-in-arguments": (
        {"rightsizer": {"prometheus": {"headers": ["Authorization: Bearer s3cret"]}}},
        "headers has the value of Authorization, and everybody could read it in the pod's arguments; put it into",
    ),
    "minute": (
        {"rightsizer": {"schedule": "99 * * * *"}},
        r"at '/rightsizer/schedule': '99 \* .*does not match",
    ),
    "name": ({"fullnameOverride": "UPPER_x"}, "at '/fullnameOverride': 'UPPER_x' does not match"),
    "part-of-a-name": ({"nameOverride": "-x"}, "at '/nameOverride': '-x' does not match"),
    "account": (
        {"serviceAccount": {"name": "Foo Bar"}},
        "at '/serviceAccount/name': 'Foo Bar' does not match",
    ),
    "label": ({"commonLabels": {"foo": "bar baz!"}}, "at '/commonLabels/foo': 'bar baz!' does not match"),
    "key-of-a-label": (
        {"commonLabels": {"a b": "c"}},
        "at '/commonLabels': additional properties 'a b' not allowed",
    ),
    "label-twice": (
        {"commonLabels": {"a": "b"}, "rightsizer": {"extraPodLabels": {"a": "c"}}},
        "rightsizer.extraPodLabels and commonLabels both have the label a",
    ),
    "label-of-a-monitor": (
        {"monitoring": {"serviceMonitor": {"labels": {"helm.sh/chart": "x"}}}},
        "monitoring.serviceMonitor.labels has the label helm.sh/chart, which the chart sets itself",
    ),
    "image": ({"image": {"repository": "x: y"}}, "at '/image/repository': 'x: y' does not match"),
    "no-policy-of-a-level": (
        {"priorityClasses": {"levels": {"high": {"policy": None}}}},
        "at '/priorityClasses/levels/high': missing property 'policy'",
    ),
    "no-mode-of-a-level": (
        {"priorityClasses": {"levels": {"high": {"policy": {"mode": None}}}}},
        "at '/priorityClasses/levels/high/policy': missing property 'mode'",
    ),
    "nothing-in-place-of-a-section": (
        {"exporter": {"service": None}},
        "at '/exporter': missing property 'service'",
    ),
    "annotation-of-all-classes": (
        {"priorityClasses": {"annotations": {"gpu-rightsizer.io/mode": "enforce"}}},
        "gpu-rightsizer.io/mode, which would override all levels",
    ),
    "kept-by-annotation": (
        {"priorityClasses": {"annotations": {"helm.sh/resource-policy": "keep"}}},
        "use priorityClasses.keep",
    ),
    "annotation-of-pods": (
        {"rightsizer": {"podAnnotations": {"checksum/files": "x"}}},
        "rightsizer.podAnnotations has checksum/files, which the chart sets itself",
    ),
    "removed-journal": (
        {"rightsizer": {"journal": {"existingClaim": ""}}},
        "rightsizer.journal was removed; rightsizer.logFormat: json writes each change to the log",
    ),
    "quota-twice": (
        {
            "priorityClasses": {"gpus": [{"name": "h100"}]},
            "resourceQuotas": [
                {"namespace": "a", "gpu": "h100", level: {"pods": 1}} for level in ("low", "high")
            ],
        },
        "resourceQuotas has gpu h100 in namespace a twice; write one",
    ),
    "quota-of-limits": (
        {"resourceQuotas": [{"namespace": "a", "gpu": "h100", "low": {"limits.nvidia.com/gpu": 1}}]},
        "at '/resourceQuotas/0/low': additional properties 'limits.nvidia.com/gpu' not allowed",
    ),
    "quota-of-nothing": (
        {"resourceQuotas": [{"namespace": "a", "gpu": "h100", "low": {"pods": -1}}]},
        "resourceQuotas/0/low/pods': minimum: got -1, want 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_values_are_rejected_by_name(name: str) -> None:
    """A message names the invalid value or combination, and the remedy."""
    values, words = WRONG[name]
    assert re.search(words, refused(values))


def test_priority_classes_carry_policy_annotations() -> None:
    """Three for each GPU model with annotations as rules; a model may override them."""
    gpus = [{"name": "h100"}, {"name": "a100", "levels": {"low": {"value": 7, "policy": {"min-gpus": 1}}}}]
    objects = render({"priorityClasses": {"gpus": gpus}}, only=["classes"])
    read = {}
    for one in objects:
        item = PriorityClass(one["metadata"]["name"], one["value"], one["metadata"]["annotations"])
        rule = read_class(item)
        assert rule is not None
        assert rule.problems == ()
        read[item.name] = (item.value, rule.rule.mode.value, rule.rule.minGPUs)
    assert read == {
        "high-priority-h100": (100_000, "protect", 0),
        "medium-priority-h100": (10_000, "enforce", 0),
        "low-priority-h100": (1_000, "enforce", 0),
        "high-priority-a100": (100_000, "protect", 0),
        "medium-priority-a100": (10_000, "enforce", 0),
        "low-priority-a100": (7, "enforce", 1),
    }


def test_priority_classes_without_policy_become_the_policy() -> None:
    """Classes come first, as in the example; a policy of the user wins."""
    gpus = {"priorityClasses": {"gpus": [{"name": "h100"}]}}
    example = yaml.safe_load((ROOT / "deploy" / "examples" / "policy-by-class.yaml").read_text())
    acting = {**ACTING, "policy": {}}
    for given in ({}, acting, {**acting, "mode": "deployment"}):
        objects = render({**gpus, "rightsizer": given}, only=["rightsizer"])
        text = find_one(objects, "ConfigMap", "gpu-rightsizer-policy")["data"]["policy.yaml"]
        assert yaml.safe_load(text) == example
        (owner,) = [one for one in objects if one["kind"] in {"CronJob", "Deployment"}]
        variables = {one["name"]: one["value"] for one in pod_of(owner)["containers"][0]["env"]}
        assert variables["GPU_RIGHTSIZER_POLICY"] == "/etc/gpu-rightsizer/policy.yaml"
    own = {**ADVISING, "classAnnotations": "class-first"}
    objects = render({**gpus, "rightsizer": {**acting, "policy": own}}, only=["rightsizer"])
    text = find_one(objects, "ConfigMap", "gpu-rightsizer-policy")["data"]["policy.yaml"]
    assert yaml.safe_load(text) == own


@pytest.mark.parametrize("given", [{}, {"keep": False}], ids=["as-it-is", "not-kept"])
def test_priority_classes_on_uninstall_are_kept(given: Object) -> None:
    """Workloads refer to them; `keep: false` removes them."""
    objects = render({"priorityClasses": {"gpus": [{"name": "h100"}], **given}}, only=["classes"])
    words = [one["metadata"]["annotations"].get("helm.sh/resource-policy") for one in objects]
    assert words == ([None] * 3 if given else ["keep"] * 3)


def test_resource_quotas_limit_by_class() -> None:
    """Each quota counts the pods of one class."""
    quotas = [{"namespace": "research", "gpu": "h100", "high": {"requests.nvidia.com/gpu": 8}}]
    objects = render(
        {"priorityClasses": {"gpus": [{"name": "h100"}]}, "resourceQuotas": quotas}, only=["classes"]
    )
    spec = find_one(objects, "ResourceQuota", "high-priority-h100")["spec"]
    assert spec["hard"] == {"requests.nvidia.com/gpu": "8"}
    (scope,) = spec["scopeSelector"]["matchExpressions"]
    assert scope == {"scopeName": "PriorityClass", "operator": "In", "values": ["high-priority-h100"]}


def test_resource_quotas_can_limit_pods_without_class() -> None:
    """Pods without class would bypass all other quotas; there is one for each entry."""
    quotas = [
        {"namespace": "research", "gpu": gpu, "withoutClass": {"requests.nvidia.com/gpu": 0}}
        for gpu in ("a", "b")
    ]
    gpus = [{"name": "a"}, {"name": "b"}]
    objects = render({"priorityClasses": {"gpus": gpus}, "resourceQuotas": quotas}, only=["classes"])
    for gpu in ("a", "b"):
        spec = find_one(objects, "ResourceQuota", f"without-class-{gpu}")["spec"]
        assert spec["hard"] == {"requests.nvidia.com/gpu": "0"}
        assert spec["scopeSelector"]["matchExpressions"] == [
            {"scopeName": "PriorityClass", "operator": "DoesNotExist"}
        ]


@pytest.mark.parametrize(
    "schedule",
    ["*/5 0-6,22-23 1,15 jan-MAR Mon-5", "0 23 31 12 0", "@daily", "00 08 ? * sun", "1-59/2 * * * *"],
)
def test_schedule_valid_for_kubernetes_is_accepted(schedule: str) -> None:
    """Ranges, steps, lists, names in any case, and macros."""
    cronjob = find_one(render({"rightsizer": {"schedule": schedule}}, only=["rightsizer"]), "CronJob")
    assert cronjob["spec"]["schedule"] == schedule


def test_node_pool_with_only_rdma_adds_no_nodes() -> None:
    """Nodes without GPUs may have RDMA cards, and an exporter would crash there. Taints are tolerated."""
    alone = {"name": "a", "rdma": True, "tolerations": [{"key": "team"}]}
    with_pool, without = exporter({"platform": "oke", "nodePools": [alone]}), exporter({"platform": "oke"})
    assert with_pool["affinity"] == without["affinity"]
    assert with_pool["tolerations"][-1] == {"key": "team"}
    given = {"nodePools": [alone], "exporter": {"pauseForGpuOperator": False}}
    terms = exporter(given)["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [one["key"] for one in term["matchExpressions"]] == ["nvidia.com/gpu.present"]


def test_notes_name_missing_image_and_pod_security_label() -> None:
    """The image is not published, and Pod Security must admit the exporter."""
    assert "no image is published as gpu-rightsizer:" in notes({})
    assert "no image is published" not in notes({"image": {"registry": "registry.example.com"}})
    assert "no image is published" not in notes({"image": {"repository": "example.com/a/gpu-rightsizer"}})
    assert "namespace default pod-security.kubernetes.io/enforce=privileged" in notes({})
    assert "pod-security" not in notes({"exporter": {"enabled": False}})


def test_monitors_and_network_policies_select_their_pods() -> None:
    """Selectors match only the pods and Services of their component."""
    objects = render(EVERYTHING)
    daemon = find_one(objects, "DaemonSet", "gpu-rightsizer-exporter")["spec"]["template"]["metadata"][
        "labels"
    ]
    runner = find_one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for kind, path in (
        ("ServiceMonitor", ("selector", "matchLabels")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
    ):
        for name, labels, other in (
            ("gpu-rightsizer-exporter", daemon, runner),
            ("gpu-rightsizer", runner, daemon),
        ):
            selector = find_one(objects, kind, name)["spec"][path[0]][path[1]].items()
            assert selector <= labels.items()
            assert not selector <= other.items()
    for name in ("gpu-rightsizer-exporter", "gpu-rightsizer"):
        labels = find_one(objects, "Service", name)["metadata"]["labels"]
        selector = find_one(objects, "ServiceMonitor", name)["spec"]["selector"]["matchLabels"]
        assert selector.items() <= labels.items()


def test_scrape_timeout_equal_to_interval_is_accepted() -> None:
    """Compared as durations, not as text."""
    given = {"enabled": True, "interval": "60s", "scrapeTimeout": "1m"}
    assert render({"monitoring": {"serviceMonitor": given}}, only=["monitoring"])


def test_scrape_annotations_mark_scraped_pods() -> None:
    """Pods of both programs have port and path, for a Prometheus without the operator."""
    values = {"monitoring": {"scrapeAnnotations": {"enabled": True}}, "rightsizer": {"mode": "deployment"}}
    found = {
        one["kind"]: one["spec"]["template"]["metadata"]["annotations"]
        for one in render(values)
        if one["kind"] in {"DaemonSet", "Deployment"}
    }
    for kind, port in (("DaemonSet", "9400"), ("Deployment", "9401")):
        wanted = {"scrape": "true", "port": port, "path": "/metrics"}
        assert {f"prometheus.io/{key}": value for key, value in wanted.items()}.items() <= found[kind].items()


@pytest.mark.parametrize("kind", ["serviceMonitor", "podMonitor"])
def test_monitors_add_node_label(kind: str) -> None:
    """Alerts and dashboard use `node`, whatever label the exporter has."""
    values = {"monitoring": {kind: {"enabled": True}}, "rightsizer": {"mode": "deployment"}}
    monitors = render(values, only=["monitoring"])
    assert len(monitors) == 2
    for one in monitors:
        (endpoint,) = one["spec"].get("endpoints") or one["spec"]["podMetricsEndpoints"]
        assert endpoint["relabelings"] == [
            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
        ]


@pytest.mark.parametrize(
    ("url", "given", "port"),
    [
        pytest.param("http://prometheus:9090", [], 9090, id="its-own"),
        pytest.param("http://thanos.example.com:10902/api", [], 10902, id="with-a-path"),
        pytest.param("https://aps.example.com/workspaces/a:7", [], 443, id="https"),
        pytest.param("http://mimir", [], 80, id="http"),
        pytest.param("", [], 9090, id="looked-for"),
        pytest.param("http://mimir", [8080], 8080, id="said"),
    ],
)
def test_network_policy_allows_prometheus_port(url: str, given: list[int], port: int) -> None:
    """The port of its URL unless values set another; otherwise only DNS and the API server."""
    values = {
        "networkPolicy": {"limitEgress": True, "prometheusPorts": given, "apiServerPorts": [6443]},
        "rightsizer": {"prometheus": {"url": url}},
    }
    (egress,) = find_one(render(values, only=["networkpolicies"]), "NetworkPolicy")["spec"]["egress"]
    assert [one["port"] for one in egress["ports"]] == [53, 53, 6443, port]


@pytest.mark.parametrize("mode", ["cronjob", "deployment"])
def test_network_policies_by_default_restrict_only_what_is_known(mode: str) -> None:
    """Anybody may scrape; the exporter connects to nothing; the addresses that others need are unknown to the chart."""
    both = {"exporter": {"enabled": True}, "rightsizer": {"mode": mode}}
    found = {
        name: {
            policy["metadata"]["name"]: policy["spec"]
            for policy in render({**both, **more}, only=["networkpolicies"])
        }
        for name, more in (("default", {}), ("asks", {"exporter": {"enabled": True, "podUid": True}}))
    }
    exporter, rightsizer = found["default"]["gpu-rightsizer-exporter"], found["default"]["gpu-rightsizer"]
    metrics = [{"ports": [{"protocol": "TCP", "port": "metrics"}]}]
    assert (exporter["ingress"], exporter["egress"], exporter["policyTypes"]) == (
        metrics,
        [],
        ["Ingress", "Egress"],
    )
    assert rightsizer["ingress"] == (metrics if mode == "deployment" else [])
    assert [one["policyTypes"] for one in (rightsizer, found["asks"]["gpu-rightsizer-exporter"])] == [
        ["Ingress"],
        ["Ingress"],
    ]
    off = render({**both, "networkPolicy": {"enabled": False}})
    assert "NetworkPolicy" not in {one["kind"] for one in off}


def test_network_policy_allows_dns_ports_of_platform() -> None:
    """OpenShift's DNS pods listen on another port than their Service; a NetworkPolicy sees that of the pod."""
    ports = {}
    for platform, more in (("", {}), ("openshift", {}), ("openshift", {"dnsPorts": [53]})):
        values = {"platform": platform, "networkPolicy": {"limitEgress": True, **more}}
        (egress,) = find_one(render(values, only=["networkpolicies"]), "NetworkPolicy")["spec"]["egress"]
        ports[platform, *more] = [one["port"] for one in egress["ports"] if one["protocol"] == "UDP"]
    assert ports == {("",): [53], ("openshift",): [53, 5353], ("openshift", "dnsPorts"): [53]}


def test_alerts_enabled_serve_the_metrics_they_need() -> None:
    """Unless values set a smaller set of metrics; the notes then name the silent alerts."""
    rules = {"monitoring": {"rules": {part: {"enabled": True} for part in ("alerts", "dashboard")}}}
    found = {}
    for values in ({}, rules):
        for given in ({}, {"metrics": "default"}):
            variables = exporter(values, **given)["containers"][0]["env"]
            level = next(one["value"] for one in variables if one["name"] == "GPU_EXPORTER_METRICS")
            words = "stay silent" in notes({**values, "exporter": given})
            found[bool(values), bool(given)] = (level, words)
    assert found == {
        (False, False): ("default", False),
        (False, True): ("default", False),
        (True, False): ("full", False),
        (True, True): ("default", True),
    }


def test_waste_budget_value_sets_rule() -> None:
    """The only number of the alerts to set for each cluster."""
    rules = {"alerts": {"enabled": True, "wasteBudgetPerHour": 1250.5}, "dashboard": {"enabled": True}}
    objects = render({"monitoring": {"rules": rules}}, only=["monitoring"])
    groups = find_one(objects, "PrometheusRule", "gpu-rightsizer-alerts")["spec"]["groups"]
    found = [
        rule["expr"]
        for group in groups
        for rule in group["rules"]
        if rule.get("record") == "gpu_rightsizer:waste_budget:per_hour"
    ]
    assert found == ["vector(1250.5)"]


def test_rules_and_dashboard_equal_repository_files() -> None:
    """Identical, except that each runbook becomes a link."""
    objects = render(EVERYTHING, only=["monitoring"])
    files = {"recording": "recording-rules", "dashboard": "dashboard-rules", "alerts": "alerts"}
    named = {
        ', cronjob!~".+-(backtest|digest)"': "",
        '=~"(.*-)?gpu-rightsizer(-.+)?-(backtest|digest)"': '=~"gpu-rightsizer-backtest|gpu-rightsizer-digest"',
        '=~"(.*-)?gpu-rightsizer(-.+)?"': '="gpu-rightsizer"',
        'job=~"(.*[/-])?gpu-rightsizer"': 'job=~"(.*/)?gpu-rightsizer"',
    }
    for part, name in files.items():
        text = (ROOT / "deploy" / "prometheus" / f"{name}.yaml").read_text()
        for any_release, this_one in named.items():
            text = text.replace(any_release, this_one)
        expected = yaml.safe_load(text)["groups"]
        for rule in (rule for group in expected for rule in group["rules"] if "annotations" in rule):
            runbook = rule["annotations"]["runbook"]
            assert (ROOT / runbook).exists()
            rule["annotations"]["runbook_url"] = f"https://example.com/main/{runbook}"
        found = find_one(objects, "PrometheusRule", f"gpu-rightsizer-{part}")
        assert found["spec"]["groups"] == expected
        assert found["metadata"]["labels"]["release"] == "x"
    dashboard = find_one(objects, "ConfigMap", "gpu-rightsizer-dashboard")
    text = (ROOT / "dashboards" / "grafana.json").read_text()
    assert json.loads(dashboard["data"]["gpu-rightsizer.json"]) == json.loads(text)
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_policy_value_reaches_config_map_unchanged() -> None:
    """Times, dates and `off` survive YAML; a changed policy changes the pod."""
    policy = {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Policy",
        "classAnnotations": False,
        "maintenanceWindows": [{"from": "22:00", "to": "06:00"}],
        "freezes": [{"from": "2026-12-20", "to": "2027-01-06"}],
        "rules": [{"name": "a", "match": {"priority": {"max": 1_000_000}}, "mode": "advise"}],
    }
    objects = render({"rightsizer": {"policy": policy}})
    text = find_one(objects, "ConfigMap", "gpu-rightsizer-policy")["data"]["policy.yaml"]
    assert yaml.safe_load(text) == policy
    other = render({"rightsizer": {"policy": {**policy, "respectOptOut": False}}})
    sums = [
        find_one(found, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["annotations"]
        for found in (objects, other)
    ]
    assert sums[0] != sums[1]


def test_two_releases_have_no_object_in_common() -> None:
    """Two releases have no object in common."""
    values = {"rightsizer": ACTING}
    one, two = (
        {(item["kind"], item["metadata"]["name"]) for item in render(values, release=name, namespace=name)}
        for name in ("blue", "green")
    )
    assert one
    assert not one & two
