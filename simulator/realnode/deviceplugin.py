"""A device plugin for a real kubelet, with the names, resources and ids of NVIDIA's (run: version 0.20).

It tells a container its GPUs by NVIDIA_VISIBLE_DEVICES, as NVIDIA's does by default.
"""

import functools
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_POLL_S = 0.1
_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"


@functools.cache
def _messages() -> Any:  # noqa: ANN401 - a module made at run time has no type
    return grpc.protos("simulator/realnode/deviceplugin.proto")


class DevicePlugin:
    """Offers devices under one resource name; registers again whenever the kubelet has restarted.

    Args:
        folder: The kubelet's device-plugins, by a path of which a socket may have the length.
        resource: Such as nvidia.com/gpu.
        ids: The devices.
    """

    def __init__(self, folder: Path, resource: str, ids: Sequence[str]) -> None:
        self.resource = resource
        self._folder = folder
        self._ids = ids
        self._unhealthy: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._version = 0
        self._stopped = threading.Event()
        self._endpoint = f"nvidia-{resource.rpartition('/')[2]}.sock"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End, as a plugin's pod that is deleted."""
        self._stopped.set()
        self._change()
        self._thread.join()

    def set_unhealthy(self, ids: Collection[str]) -> None:
        """Report these devices as unhealthy, and all others as healthy."""
        self._unhealthy = frozenset(ids)
        self._change()

    def _change(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _run(self) -> None:
        """Serve and register; begin again when the kubelet has removed the socket, as it does at its start."""
        socket = self._folder / self._endpoint
        server: grpc.Server | None = None
        while not self._stopped.wait(_POLL_S):
            if server is not None and socket.exists():
                continue
            if server is not None:
                self._end(server)
            server = self._serve(socket)
            try:
                self._register()
            except grpc.RpcError:  # the kubelet is not there yet
                self._end(server)
                socket.unlink(missing_ok=True)
                server = None
        if server is not None:
            self._end(server)

    def _end(self, server: grpc.Server) -> None:
        self._change()
        server.stop(grace=None).wait()

    def _serve(self, socket: Path) -> grpc.Server:
        of = _messages()
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        table = {
            "GetDevicePluginOptions": (unary, lambda *_: of.DevicePluginOptions(), of.Empty),
            "ListAndWatch": (stream, self._watch, of.Empty),
            "Allocate": (unary, _allocate, of.AllocateRequest),
        }
        methods = {
            name: kind(answer, request_deserializer=request.FromString, response_serializer=_serialized)
            for name, (kind, answer, request) in table.items()
        }
        socket.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
        handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        return server

    def _register(self) -> None:
        request = _messages().RegisterRequest(
            version="v1beta1", endpoint=self._endpoint, resource_name=self.resource
        )
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=_serialized,
                response_deserializer=_messages().Empty.FromString,
            )
            call(request, timeout=5.0)

    def _watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: ANN401 - protobuf
        of = _messages()
        while context.is_active() and not self._stopped.is_set():
            with self._changed:
                version = self._version
            yield of.ListAndWatchResponse(
                devices=[
                    of.Device(ID=one, health=_UNHEALTHY if one in self._unhealthy else _HEALTHY)
                    for one in self._ids
                ]
            )
            with self._changed:
                self._changed.wait_for(lambda version=version: self._version != version)  # type: ignore[misc]


def _allocate(request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: ANN401 - protobuf
    of = _messages()
    return of.AllocateResponse(
        container_responses=[
            of.ContainerAllocateResponse(
                envs={
                    VISIBLE_DEVICES: ",".join(sorted({one.partition("::")[0] for one in asked.devices_ids}))
                }
            )
            for asked in request.container_requests
        ]
    )


def _serialized(message: Any) -> bytes:  # noqa: ANN401 - protobuf
    content: bytes = message.SerializeToString()
    return content
