"""Services: what the server fills in, and what can be one. Pure. No addresses are given out: nothing here routes."""

from typing import Any

from simulator.kube.errors import FieldError
from simulator.kube.objects import Object

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_HIGHEST_PORT = 65535


def default_service(obj: Object) -> None:
    """As pkg/apis/core/v1/defaults.go, SetDefaults_Service."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", _TYPES[0])
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def service_problems(obj: Object) -> list[FieldError]:
    """As pkg/apis/core/validation, ValidateService."""
    spec = obj["spec"]
    ports = spec.get("ports", [])
    problems = []
    if spec["type"] not in _TYPES:
        problems.append(FieldError.unsupported("spec.type", spec["type"], _TYPES))
    if spec["type"] == "ExternalName" and not spec.get("externalName"):
        problems.append(FieldError.required("spec.externalName"))
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        problems.append(FieldError.required("spec.ports"))
    for index, port in enumerate(ports):
        problems += _port_problems(port, f"spec.ports[{index}]", is_one_of_several=len(ports) > 1)
    return problems


def _port_problems(port: dict[str, Any], field: str, *, is_one_of_several: bool) -> list[FieldError]:
    problems = []
    if is_one_of_several and not port.get("name"):
        problems.append(FieldError.required(f"{field}.name"))
    if not 0 < port.get("port", 0) <= _HIGHEST_PORT:
        problems.append(
            FieldError.invalid(f"{field}.port", port.get("port", 0), "must be between 1 and 65535, inclusive")
        )
    if port["protocol"] not in _PROTOCOLS:
        problems.append(FieldError.unsupported(f"{field}.protocol", port["protocol"], _PROTOCOLS))
    return problems
