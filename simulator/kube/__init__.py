"""A Kubernetes API server on loopback, with its real semantics and the controllers whose reaction matters.

Data flows one way: api > server > handlers > registry | eviction | scaling | listing | watching > admission |
validation | patch > store > objects | resources | errors; controllers > registry.
"""

from simulator.kube.api import ApiServer
from simulator.kube.errors import ApiError
from simulator.kube.faults import Fault
from simulator.kube.rbac import ADMIN_TOKEN, Rule
from simulator.kube.requestlog import LoggedRequest, RequestLog

__all__ = ["ADMIN_TOKEN", "ApiError", "ApiServer", "Fault", "LoggedRequest", "RequestLog", "Rule"]
