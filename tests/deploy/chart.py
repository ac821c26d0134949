"""The chart as rendered by Helm, and values for tests."""

import functools
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from simulator.controlplane.programs import HELM, find

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "gpu-rightsizer"
Object = dict[str, Any]

POLICY: Object = {
    "apiVersion": "gpu-rightsizer.io/v1alpha1",
    "kind": "Policy",
    "classAnnotations": "off",
    "rules": [
        {"name": "production", "match": {"priorityClasses": ["high-*"]}, "mode": "protect"},
        {
            "name": "research",
            "match": {"namespaces": ["research"], "kinds": ["Deployment", "Pod"]},
            "mode": "enforce",
            "actions": ["scale-down", "resize", "scale-to-zero", "evict"],
        },
    ],
}
ACTING: Object = {"act": True, "prometheus": {"url": "http://prometheus:9090"}, "policy": POLICY}
_WEBHOOK = {"type": "webhook", "url": "https://hooks.example.com/gpu"}
SENDING: Object = {**ACTING, "policy": {**POLICY, "notifications": [_WEBHOOK]}}
EVERYTHING: Object = {
    "image": {"registry": "registry.example.com/", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "commonLabels": {"team": "platform"},
    "nodePools": [
        {
            "name": "rdma",
            "gpu": "h100",
            "rdma": True,
            "nodeSelector": {"pool": "rdma"},
            "tolerations": [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
        }
    ],
    "exporter": {
        "collectors": ["power", "memory"],
        "serialNumbers": True,
        "resourceNames": ["example.com/gpu"],
        "adminAccessNamespaces": ["monitoring"],
        "podLabels": ["team"],
        "podUid": True,
        "hpcJobMappingDir": "/var/jobs",
        "attribution": {"enabled": True},
        "extraArgs": ["--replace-blanks-in-model-name"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "podAnnotations": {"a": "b"},
        "extraPodLabels": {"c": "d"},
        "service": {"annotations": {"e": "f"}},
        "webConfig": {"existingSecret": "web"},
        "securityContextConstraints": {"create": True},
    },
    "rightsizer": {
        **SENDING,
        "mode": "deployment",
        "replicas": 2,
        "jitter": "1m",
        "logFormat": "json",
        "logLevel": "debug",
        "instance": "blue",
        "gpuResources": ["example.com/gpu=shares"],
        "prices": {"currency": "EUR"},
        "prometheus": {
            "url": "https://prometheus:9090",
            "existingSecret": "prometheus",
            "user": "me",
            "passwordFile": "/etc/gpu-rightsizer/prometheus/password",
            "sigv4Region": "eu-central-1",
            "clientCertFile": "/etc/gpu-rightsizer/prometheus/tls.crt",
            "clientKeyFile": "/etc/gpu-rightsizer/prometheus/tls.key",
            "caFile": "/etc/gpu-rightsizer/prometheus/ca.crt",
            "insecureSkipVerify": True,
            "signalsTable": {"metrics": []},
            "headers": ["X-Scope-OrgID: team", "Authorization=@/etc/gpu-rightsizer/prometheus/word"],
            "labels": {"cluster": "prod"},
        },
        "notifications": {"existingSecret": "slack"},
        "ledger": {"existingClaim": "ledger", "clusterName": "prod-eu", "teamLabel": "example.com/team"},
        "extraArgs": ["--color", "never"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"a": "b"},
        "affinity": {"podAntiAffinity": {}},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "podAnnotations": {"a": "b"},
        "extraPodLabels": {"c": "d"},
    },
    "backtest": {
        "enabled": True,
        "policies": {"careful": POLICY},
        "output": "json",
        "report": {"existingClaim": "reports"},
        "history": "/var/lib/gpu-rightsizer/history",
        "parts": 4,
        "extraArgs": ["--step", "30m"],
        "activeDeadlineSeconds": 3600,
    },
    "digest": {"enabled": True, "since": "7d", "schedule": "0 7 * * 1"},
    "serviceAccount": {"annotations": {"role": "arn"}},
    "monitoring": {
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "x"},
            "relabelings": [{"action": "drop"}],
            "metricRelabelings": [{"action": "drop"}],
            "tlsConfig": {"insecureSkipVerify": True},
            "basicAuth": {"username": {"name": "s", "key": "u"}},
        },
        "rules": {
            **{part: {"enabled": True} for part in ("recording", "dashboard", "alerts")},
            "runbookBaseUrl": "https://example.com/main/",
            "labels": {"release": "x"},
        },
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
    },
    "networkPolicy": {"limitEgress": True, "metricsFrom": [{"podSelector": {}}], "extraEgress": [{"to": []}]},
    "podDisruptionBudget": {"enabled": True},
    "priorityClasses": {
        "gpus": [{"name": "h100", "about": "NVIDIA H100", "levels": {"low": {"value": 5}}}, {"name": "a100"}],
        "annotations": {"team": "platform"},
    },
    "resourceQuotas": [
        {"namespace": "research", "gpu": "h100", "high": {"requests.nvidia.com/gpu": 8}, "low": {"pods": "9"}}
    ],
}
"""Every option at once, except for invalid combinations."""


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """A Helm command with values on standard input."""
    flags = ("--values", "-") if values is not None else ()
    return subprocess.run(
        [_path(), *arguments, *flags],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@functools.cache
def _path() -> str:
    return str(find((HELM,))["helm"])


def render(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "gpu-rightsizer",
    namespace: str = "gpu-rightsizer",
    only: Sequence[str] = (),
) -> list[Object]:
    """The objects installed with these values, or those of some templates."""
    parts = [flag for name in only for flag in ("--show-only", f"templates/{name}.yaml")]
    done = helm("template", release, str(CHART), "--namespace", namespace, *parts, values=values or {})
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]


def refused(values: Mapping[str, Any]) -> str:
    """The error message for invalid values."""
    done = helm("template", "gpu-rightsizer", str(CHART), values=values)
    assert done.returncode != 0
    return done.stderr


def notes(values: Mapping[str, Any]) -> str:
    """The notes after an installation with these values."""
    done = helm("install", "gpu-rightsizer", str(CHART), "--dry-run=client", "--hide-secret", values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


def find_one(objects: Sequence[Object], kind: str, name: str = "gpu-rightsizer") -> Object:
    """The only object of a kind and name."""
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(owner: Object) -> Object:
    """The pod's spec of a DaemonSet, Deployment or CronJob."""
    spec: Object = owner["spec"]
    if owner["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Object = spec["template"]["spec"]
    return template


def exporter(values: Mapping[str, Any] | None = None, **given: Any) -> Object:
    """The exporter's pod."""
    objects = render({"exporter": given, **(values or {})}, only=["exporter"])
    return pod_of(find_one(objects, "DaemonSet", "gpu-rightsizer-exporter"))


def rightsizer(**given: Any) -> Object:
    """The rightsizer's pod."""
    (owner,) = [
        one
        for one in render({"rightsizer": given}, only=["rightsizer"])
        if one["kind"] in {"CronJob", "Deployment"}
    ]
    return pod_of(owner)
