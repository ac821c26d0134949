"""What a saved manifest contains, and what of it exceeds the Pod Security Standard baseline."""

import json
import re
from typing import Any

import pytest

from rightsizer.kinds.saved_pods import recreatable, saved_pod

Object = dict[str, Any]
_HTTP, _TCP = ({"httpGet": {"port": 80, "host": "10.0.0.1"}}, {"tcpSocket": {"port": 80, "host": "10.0.0.1"}})


def pod_of(spec: Object, **metadata: Any) -> Object:
    """A manifest as it is saved."""
    image = {"containers": [{"name": "c", "image": "app:1"}]}
    found = {"namespace": "team", "name": "shell", **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": found, "spec": {**image, **spec}}


def _container(group: str = "containers", **fields: Any) -> Object:
    return {group: [{"name": "d", "image": "app:2", **fields}]}


def _both(context: Object) -> dict[str, Object]:
    """A security context of the pod, and of a container."""
    name = "-".join(re.findall(r"\w+", json.dumps(context)))
    return {
        f"{name}-of-pod": {"securityContext": context},
        f"{name}-of-container": _container(securityContext=context),
    }


BEYOND: dict[str, Object] = {
    **{name: {name: True} for name in ("hostPID", "hostIPC", "hostNetwork")},
    "privileged": _container(securityContext={"privileged": True}),
    "privileged-init": _container("initContainers", securityContext={"privileged": True}),
    "capability": _container(securityContext={"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}}),
    "every-capability": _container(securityContext={"capabilities": {"add": ["ALL"]}}),
    "host-path": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    "host-port": _container(ports=[{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]),
    "sysctl": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    **_both({"seccompProfile": {"type": "Unconfined"}}),
    **_both({"appArmorProfile": {"type": "Unconfined"}}),
    **_both({"seLinuxOptions": {"type": "spc_t"}}),
    **_both({"seLinuxOptions": {"user": "u"}}),
    **_both({"seLinuxOptions": {"role": "r"}}),
}
"""Each alone is more than the baseline allows."""
OF_NEW_SERVERS: dict[str, Object] = {
    "http-probe": _container(livenessProbe=_HTTP),
    "tcp-probe": _container(readinessProbe=_TCP),
    "startup-probe": _container(startupProbe=_TCP),
    "start-hook": _container(lifecycle={"postStart": _HTTP}),
    "stop-hook": _container(lifecycle={"preStop": _TCP}),
}
"""As above, from Kubernetes 1.34."""
ELSEWHERE: dict[str, Object] = {
    **_both({"windowsOptions": {"hostProcess": True}}),
    "proc-mount": _container(securityContext={"procMount": "Unmasked"}) | {"hostUsers": False},
}
"""As above, on Windows and without user namespaces."""
WITHIN: dict[str, Object] = {
    "plain": {},
    "off": {"hostPID": False, "hostNetwork": False, "hostIPC": False, "securityContext": {}},
    "root": _container(securityContext={"runAsUser": 0, "allowPrivilegeEscalation": True}),
    "capabilities": _container(securityContext={"capabilities": {"add": ["CHOWN", "SYS_CHROOT"]}}),
    "probes": _container(livenessProbe={"httpGet": {"port": 80}}, ports=[{"containerPort": 80}]),
    "volumes": {"volumes": [{"name": "v", "emptyDir": {}}]},
    "sysctl": {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}},
    **_both({"seccompProfile": {"type": "RuntimeDefault"}, "seLinuxOptions": {"type": "container_t"}}),
}
"""Nothing is more than the baseline allows."""
EVERY = {**BEYOND, **OF_NEW_SERVERS, **ELSEWHERE}


@pytest.mark.parametrize("spec", EVERY.values(), ids=EVERY.keys())
def test_saved_pod_beyond_baseline_is_told(spec: Object) -> None:
    """Each control of the standard, alone."""
    pod = saved_pod(pod_of(spec), "")
    assert len(pod.privileges) == 1
    assert "exceeds Pod Security baseline: " in pod.words


@pytest.mark.parametrize("spec", WITHIN.values(), ids=WITHIN.keys())
def test_saved_pod_within_baseline_has_no_privileges(spec: Object) -> None:
    """What the standard allows needs no flag."""
    assert saved_pod(pod_of(spec), "").privileges == ()


@pytest.mark.parametrize(("profile", "is_told"), [("unconfined", True), ("runtime/default", False)])
def test_saved_pod_apparmor_annotation_counts(profile: str, is_told: bool) -> None:
    """As before Kubernetes 1.30."""
    notes = {"container.apparmor.security.beta.kubernetes.io/c": profile}
    assert bool(saved_pod(pod_of({}, annotations=notes), "").privileges) is is_told


@pytest.mark.parametrize(
    "fields", [("serviceAccountName",), ("serviceAccount",), ("serviceAccountName", "serviceAccount")]
)
def test_saved_pod_lists_images_and_account(fields: tuple[str, ...]) -> None:
    """Of every container, each image once; the account also under its deprecated name."""
    spec = _container("initContainers") | dict.fromkeys(fields, "admin")
    assert saved_pod(pod_of(spec), "").words == "images app:1, app:2; service account admin"


FORGED: dict[str, Object] = {
    "bound": pod_of({"nodeName": "control-plane"}),
    "ranked": pod_of({"priority": 2_000_000_000}),
    "system-class": pod_of({"priorityClassName": "system-node-critical"}),
    "owned": pod_of({}, ownerReferences=[{"kind": "DaemonSet", "name": "d", "uid": "u"}]),
    "with-status": {**pod_of({}), "status": {}},
    "another-kind": {**pod_of({}), "kind": "PodTemplate"},
    "no-volumes": pod_of({"volumes": 1}),
    "no-volume": pod_of({"volumes": [1]}),
    "no-list": pod_of({"containers": {}}),
    "two-accounts": pod_of({"serviceAccountName": "default", "serviceAccount": "admin"}),
    "no-account": pod_of({"serviceAccount": ["admin"]}),
    "no-spec": {**pod_of({}), "spec": [{}]},
    "null-spec": {**pod_of({}), "spec": None},
    "no-metadata": {"spec": {}},
    "no-annotations": pod_of({}, annotations=["x"]),
    "no-containers": pod_of({"containers": ["x"]}),
    "no-context": pod_of({"securityContext": 1}),
}


@pytest.mark.parametrize("manifest", FORGED.values(), ids=FORGED.keys())
def test_saved_pod_not_saved_by_gpu_rightsizer_is_refused(manifest: Object) -> None:
    """Also what no API server would take: in words, not by a crash."""
    with pytest.raises(ValueError, match="it "):
        saved_pod(manifest, "")


def test_recreatable_pod_of_the_cluster_can_be_verified() -> None:
    """What evict saves, undo takes, after a way through JSON."""
    mounts = [{"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]
    spec = {
        "nodeName": "n1",
        "priority": 5,
        "volumes": [{"name": "kube-api-access-x"}, {"name": "data"}],
        "containers": [{"name": "c", "image": "app:1", "volumeMounts": mounts}],
    }
    found = {
        **pod_of(spec, uid="u", resourceVersion="1", labels={"app": "x"}),
        "status": {"phase": "Running"},
    }
    saved = json.loads(json.dumps(recreatable(found)))
    assert saved_pod(saved, "").privileges == ()
    assert saved["spec"]["volumes"] == [{"name": "data"}]


def test_recreatable_pod_of_a_queue_has_no_notes_of_its_former_admission() -> None:
    """Kueue 0.17 leaves a new pod gated that names the former Workload; the queue stays."""
    queue = {"app": "w", "kueue.x-k8s.io/queue-name": "lq"}
    notes = {"kueue.x-k8s.io/workload": "pod-w-1", "kueue.x-k8s.io/role-hash": "7d39", "own": "x"}
    labels = {**queue, "kueue.x-k8s.io/managed": "true", "kueue.x-k8s.io/podset": "main"}
    pod = {"metadata": {"name": "w", "namespace": "t", "labels": labels, "annotations": notes}, "spec": {}}
    metadata = recreatable(pod)["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == (queue, {"own": "x"})
