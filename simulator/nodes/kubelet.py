"""The kubelet's PodResources v1 service on a Unix socket, over gRPC, with failures on demand.

The messages are compiled from podresources.proto on first use, so that no generated code is kept.
"""

import dataclasses
import enum
import functools
import random
import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc

SERVICE = "v1.PodResourcesLister"


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one container under one resource name, each of which is on these NUMA nodes."""

    resource: str
    device_ids: tuple[str, ...]
    numa_nodes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device that dynamic resource allocation gave to a claim."""

    claim: str
    namespace: str
    driver: str
    pool: str
    device: str
    share_id: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PodDevices:
    """The devices of a pod by container, and those of its resource claims; pods without devices are listed, too.

    A real kubelet never lists ordinary init containers, nor what they hold: such a pod has its main containers here,
    without devices.
    """

    namespace: str
    name: str
    containers: tuple[tuple[str, tuple[Allocation, ...]], ...]
    claims: tuple[tuple[str, ClaimedDevice], ...] = ()
    is_static: bool = False


class Known(enum.Enum):
    """What a kubelet knows: nothing for two to three seconds after its start, static pods until the API server answers.

    PLUGIN: it has its pods, and the device plugin has not registered again, so that it offers no device.
    """

    NOTHING = "nothing"
    STATIC = "static"
    PLUGIN = "plugin"
    ALL = "all"


class Failure(enum.Enum):
    """How the service can fail, as seen in the field."""

    UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
    RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
    UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@functools.cache
def messages() -> Any:  # noqa: ANN401 - a module made at run time has no type
    """The module of PodResources messages, compiled from the .proto file."""
    return grpc.protos("simulator/nodes/podresources.proto")


class Kubelet:
    """Serves PodResources; a restart replaces the socket's inode. Its path has at most 107 bytes (sun_path)."""

    def __init__(
        self,
        socket: Path,
        *,
        capacity: Iterable[Allocation],
        pods: Callable[[], Iterable[PodDevices]],
    ) -> None:
        if len(str(socket)) > 107:  # noqa: PLR2004 - sizeof(sun_path) - 1
            raise ValueError(f"{socket}: longer than the 107 bytes that a Unix socket's path may have")
        self.socket = socket
        self.calls: dict[str, int] = {}
        self.known = Known.ALL
        self.capacity = tuple(capacity)
        self._pods = pods
        self._server: grpc.Server | None = None
        self._failure: Failure | None = None
        self._delay_s = 0.0
        self._padding: list[Any] = []
        self._method = ""
        self._stopped = threading.Event()

    def start(self) -> None:
        """Listen, in place of what a predecessor has left behind."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._stopped.clear()
        # The exporter must raise its own limit; the kubelet itself has none on what it sends.
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Close all connections and remove the socket, as a kubelet does that is restarted."""
        if self._server is not None:
            self._stopped.set()
            self._server.stop(grace=None).wait()
            self._server = None
            self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        """Stop and start again: the same path, another inode."""
        self.stop()
        self.start()

    def misbehave(
        self, failure: Failure | None = None, *, delay_s: float = 0.0, padding: int = 0, method: str = ""
    ) -> None:
        """Fail from now on; without arguments, recover.

        Args:
            failure: Status of every call.
            method: The only affected method, such as "List"; empty for all.
            delay_s: Seconds before each answer.
            padding: Number of extra pods without devices in each listing; 40,000 make it larger than 4 MiB.
        """
        self._failure, self._delay_s, self._method = failure, delay_s, method
        self._padding = [
            messages().PodResources(name=f"padding-{index}-{'x' * 80}", namespace="padding")
            for index in range(padding)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _methods(self) -> dict[str, grpc.RpcMethodHandler]:
        of = messages()
        table = {
            "List": (self._list, of.ListPodResourcesRequest),
            "GetAllocatableResources": (self._allocatable, of.AllocatableResourcesRequest),
            "Get": (self._get, of.GetPodResourcesRequest),
        }
        return {
            name: grpc.unary_unary_rpc_method_handler(
                functools.partial(self._serve, name, answer),
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (answer, request) in table.items()
        }

    def _serve(
        self,
        name: str,
        answer: Callable[[Any, grpc.ServicerContext], Any],
        request: Any,  # noqa: ANN401 - protobuf
        context: grpc.ServicerContext,
    ) -> Any:  # noqa: ANN401 - protobuf
        self.calls[name] = self.calls.get(name, 0) + 1
        if self._method not in {"", name}:
            return answer(request, context)
        if self._delay_s and self._stopped.wait(self._delay_s):
            context.abort(grpc.StatusCode.UNAVAILABLE, "simulated: stopped while the answer was held back")
        if self._failure is not None:
            context.abort(self._failure.value, f"simulated: {self._failure.name}")
        return answer(request, context)

    def _list(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: ANN401 - protobuf
        everything = self.known in {Known.ALL, Known.PLUGIN}
        shown = self._pods() if self.known is not Known.NOTHING else ()
        pods = [_pod(pod) for pod in shown if everything or pod.is_static]
        return messages().ListPodResourcesResponse(pod_resources=[*pods, *self._padding])

    def _allocatable(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: ANN401 - protobuf
        offered = () if self.known in {Known.NOTHING, Known.PLUGIN} else self.capacity
        return messages().AllocatableResourcesResponse(devices=_devices(offered))

    def _get(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401 - protobuf
        for pod in self._pods():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return messages().GetPodResourcesResponse(pod_resources=_pod(pod))
        missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return context.abort(grpc.StatusCode.NOT_FOUND, missing)


def _pod(pod: PodDevices) -> Any:  # noqa: ANN401 - protobuf
    containers = [
        messages().ContainerResources(
            name=name,
            devices=_devices(groups),
            dynamic_resources=[_dynamic(claimed) for container, claimed in pod.claims if container == name],
        )
        for name, groups in pod.containers
    ]
    return messages().PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _devices(groups: Iterable[Allocation]) -> list[Any]:
    """A message for each device and NUMA node, in the random order of a Go map (devicemanager, deviceInstances)."""
    found = [
        messages().ContainerDevices(
            resource_name=group.resource,
            device_ids=[device_id],
            topology=None if node is None else messages().TopologyInfo(nodes=[messages().NUMANode(ID=node)]),
        )
        for group in groups
        for device_id in group.device_ids
        for node in group.numa_nodes or (None,)
    ]
    random.shuffle(found)
    return found


def _dynamic(claimed: ClaimedDevice) -> Any:  # noqa: ANN401 - protobuf
    device = messages().ClaimResource(
        driver_name=claimed.driver,
        pool_name=claimed.pool,
        device_name=claimed.device,
        share_id=claimed.share_id,
    )
    device.cdi_devices.add(name=f"k8s.{claimed.driver}/claim={claimed.claim}-{claimed.device}")
    return messages().DynamicResource(
        claim_name=claimed.claim, claim_namespace=claimed.namespace, claim_resources=[device]
    )
