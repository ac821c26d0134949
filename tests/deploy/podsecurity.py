"""What a pod has beyond Pod Security's restricted level, as the standard lists it.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"),
    *("secret", "image"),
}
_SELINUX = {"container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def beyond_restricted(pod: dict[str, Any]) -> set[str]:
    """Each thing that the level refuses, in a word or two."""
    return {*_of_pod(pod), *(words for one in _containers(pod) for words in _of_container(one, pod))}


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"], *pod.get("ephemeralContainers", ())]


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    for volume in pod.get("volumes", ()):
        (kind,) = set(volume) - {"name"}
        if kind == "hostPath":
            yield f"hostPath {volume[kind]['path']}"
        elif kind not in _VOLUMES:
            yield f"volume {kind}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def _of_container(one: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = one.get("securityContext", {})
    both = {**pod.get("securityContext", {}), **own}
    capabilities = own.get("capabilities", {})
    wrong = {
        "privileged": own.get("privileged"),
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
        "capabilities": "ALL" not in capabilities.get("drop", ())
        or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"},
        "runAsNonRoot": both.get("runAsNonRoot") is not True,
        "runAsUser 0": both.get("runAsUser") == 0,
        "seccompProfile": both.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"},
        "seLinuxOptions": both.get("seLinuxOptions", {}).get("type", "container_t") not in _SELINUX,
        "procMount": own.get("procMount", "Default") != "Default",
        "hostPort": any(port.get("hostPort") for port in one.get("ports", ())),
    }
    yield from (name for name, is_wrong in wrong.items() if is_wrong)
