"""A Kubernetes API server on loopback with the semantics and controllers that both programs depend on."""

from simulator.kube.api import ApiServer
from simulator.kube.errors import ApiError
from simulator.kube.faults import Fault
from simulator.kube.rbac import ADMIN_TOKEN, Rule
from simulator.kube.requestlog import LoggedRequest, RequestLog

__all__ = ["ADMIN_TOKEN", "ApiError", "ApiServer", "Fault", "LoggedRequest", "RequestLog", "Rule"]
