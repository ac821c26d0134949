"""The saved manifest of an evicted pod: its content, and privileges that an undo needs a flag for. Pure.

Anybody who may write Secrets in the state namespace can write any manifest there. The memory keeps the digest of
each manifest saved.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

MANIFEST, RECORD = "manifest", "record"
"""The files of the Secret."""

_SERVICE_ACCOUNT_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_ACCOUNT = ("serviceAccountName", "serviceAccount")  # the API server reads the second if the first is empty
_NO_POD = "it is no pod"
_LONGEST = 200  # characters of one text that people see
_Steps = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SavedPod:
    """Parts of a manifest that people must see before the pod is created.

    Attributes:
        digest: Of the Secret's files.
        privileges: What exceeds the Pod Security Standard baseline, in words.
    """

    digest: str
    images: tuple[str, ...]
    service_account: str
    privileges: tuple[str, ...]

    @property
    def words(self) -> str:
        """State images, service account, and privileges that exceed the baseline."""
        images = f"{'images' if len(self.images) > 1 else 'image'} {', '.join(self.images)}"
        account = f"service account {self.service_account}"
        beyond = f"; exceeds Pod Security baseline: {', '.join(self.privileges)}" if self.privileges else ""
        return f"{images}; {account}{beyond}"


_OF_ADMISSION = frozenset(
    f"kueue.x-k8s.io/{name}"
    for name in ("managed", "podset", "workload", "role-hash", "cluster-queue-name", "local-queue-name")
)
"""Labels and annotations of one admission by Kueue 0.17: a new pod that has them stays gated for ever."""


def digest_of(files: Mapping[str, str]) -> str:
    """SHA-256 of the files of a Secret; JSON contains no NUL."""
    return hashlib.sha256("\0".join((files[MANIFEST], files[RECORD])).encode()).hexdigest()


def saved_pod(manifest: Mapping[str, Any], digest: str) -> SavedPod:
    """Extract from a manifest the parts that people must see.

    Raises:
        ValueError: gpu-rightsizer cannot have saved it.
    """
    try:
        return _saved_pod(manifest, digest)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(_NO_POD) from error


def _saved_pod(manifest: Mapping[str, Any], digest: str) -> SavedPod:
    if recreatable(manifest) != manifest:
        message = "it has fields that gpu-rightsizer does not save"
        raise ValueError(message)
    spec = manifest["spec"]
    if str(spec.get("priorityClassName")).startswith("system-"):
        message = "it has a system PriorityClass, and such a pod is never evicted"
        raise ValueError(message)
    images = (
        str(image)[:_LONGEST] for group in _CONTAINERS for image in _values(spec, (group, "[]", "image"))
    )
    accounts = {spec[key] for key in _ACCOUNT if spec.get(key)} or {"default"}
    if len(accounts) > 1:
        message = "it names two service accounts"
        raise ValueError(message)
    account = str(accounts.pop())[:_LONGEST]
    return SavedPod(digest, tuple(dict.fromkeys(images)), account, tuple(beyond_baseline(manifest)))


def recreatable(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's manifest without the fields that admission and binding added.

    The API server resolves the priority from the class again, and mounts a new service account token.
    """
    metadata = pod["metadata"]
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in {"nodeName", "priority", "preemptionPolicy"}
    }
    tokens = {
        volume["name"] for volume in spec.get("volumes", []) if volume["name"].startswith("kube-api-access-")
    }
    if tokens:
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in tokens]
        for group in ("initContainers", "containers"):
            if group in spec:
                spec[group] = [_without_token(container) for container in spec[group]]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    for notes in {"labels", "annotations"} & kept.keys():
        kept[notes] = {key: text for key, text in kept[notes].items() if key not in _OF_ADMISSION}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def _without_token(container: Mapping[str, Any]) -> dict[str, Any]:
    mounts = [
        mount for mount in container.get("volumeMounts", []) if mount["mountPath"] != _SERVICE_ACCOUNT_MOUNT
    ]
    return {**container, "volumeMounts": mounts}


# --- Pod Security Standards, baseline (https://kubernetes.io/docs/concepts/security/pod-security-standards/)

_UNSET = (None, "")
_OFF = (None, False)
_PROFILES = (None, "RuntimeDefault", "Localhost")
_CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
_SYSCTLS = (
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout"),
    *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"),
    *("net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"),
)
_ALLOWED_IN_ANY: Mapping[str, tuple[object, ...]] = {
    "windowsOptions.hostProcess": _OFF,
    "appArmorProfile.type": _PROFILES,
    "seccompProfile.type": _PROFILES,
    "seLinuxOptions.type": (
        *_UNSET,
        *("container_t", "container_init_t", "container_kvm_t", "container_engine_t"),
    ),
    "seLinuxOptions.user": _UNSET,
    "seLinuxOptions.role": _UNSET,
}
"""Allowed values in the security context of a pod, and of a container."""
_HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")
_ALLOWED_IN_CONTAINER: Mapping[str, tuple[object, ...]] = {
    "securityContext.privileged": _OFF,
    "securityContext.capabilities.add.[]": _CAPABILITIES,
    "securityContext.procMount": (*_UNSET, "Default"),
    "ports.[].hostPort": (None, 0),
    **{f"{handler}.{where}.host": _UNSET for handler in _HANDLERS for where in ("httpGet", "tcpSocket")},
    **{f"securityContext.{path}": values for path, values in _ALLOWED_IN_ANY.items()},
}
_ALLOWED: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC"), _OFF),
    "volumes.[].hostPath": (None,),
    "securityContext.sysctls.[].name": _SYSCTLS,
    **{f"securityContext.{path}": values for path, values in _ALLOWED_IN_ANY.items()},
    **{
        f"{group}.[].{path}": values
        for group in _CONTAINERS
        for path, values in _ALLOWED_IN_CONTAINER.items()
    },
}
"""The allowed values of each field below spec."""
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def beyond_baseline(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield each field that exceeds the baseline, with its value."""
    for path, allowed in _ALLOWED.items():
        for value in _values(pod["spec"], tuple(path.split("."))):
            if value not in allowed:
                yield f"{path.replace('.[]', '')} {json.dumps(value)}"[:_LONGEST]
    for key, profile in (pod["metadata"].get("annotations") or {}).items():
        if key.startswith(_APPARMOR) and not str(profile).startswith(("runtime/default", "localhost/")):
            yield f"{key} {profile}"[:_LONGEST]


def _values(node: Any, path: _Steps) -> Iterator[Any]:  # noqa: ANN401 - JSON
    """The values at a path; nothing where a list or an object on the way is missing."""
    if not path:
        yield node
        return
    if node is None:
        return
    is_list = path[0] == "[]"
    if is_list and not isinstance(node, list):
        raise TypeError(_NO_POD)
    for below in node if is_list else (node.get(path[0]),):  # AttributeError if it is no object
        yield from _values(below, path[1:])
