"""Recognises notebooks, inference servers and what a request wakes by what their objects say. Pure."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from rightsizer.model import Workload

_HUBS = ("hub.jupyter.org/", "notebooks.kubeflow.org/", "opendatahub.io/", "com.coder.")
"""Prefixes of labels of JupyterHub, Kubeflow, Open Data Hub and Coder, whatever kinds they run notebooks as."""
_NOTEBOOK = re.compile(r"jupyter|notebook|singleuser|workbench|code-server|vscode|rstudio", re.IGNORECASE)
_IMAGE = re.compile(rb'"image":"([^"]*)"')
_REVISION = "serving.knative.dev/revision"
_KNATIVE = ("serving.knative.dev", "Service")
_KSERVE = ("serving.kserve.io", "InferenceService")


def is_notebook(workload: Workload) -> bool:
    """Whether somebody works in it interactively, by labels of hubs, names of applications, or images."""
    labels = [workload.labels, *(pod.labels for pod in workload.pods)]
    if any(key.startswith(_HUBS) for own in labels for key in own):
        return True
    names = [workload.ref.name, *(text for own in labels for pair in own.items() for text in pair)]
    images = (image.decode(errors="replace") for image in _IMAGE.findall(workload.spec))
    return any(_NOTEBOOK.search(name) for name in (*names, *images))


def runs_on_knative(workload: Workload) -> bool:
    """Whether Knative scales all of its pods, as those of KServe's serverless mode."""
    return bool(workload.pods) and all(_REVISION in pod.labels for pod in workload.pods)


def is_woken(workload: Workload) -> bool:
    """Whether a request starts it again after a stop: by Knative, or by an autoscaler from zero."""
    kind = (workload.ref.group, workload.ref.kind)
    by_knative = kind == _KNATIVE or (kind == _KSERVE and runs_on_knative(workload))
    is_managed = any(manager.wakes for manager in workload.managers)
    return workload.control_object is None and (by_knative or is_managed)


@dataclasses.dataclass(frozen=True, slots=True)
class InferenceServer:
    """Marks of an inference server without metrics; its name is an engine's.

    Attributes:
        images: A pattern of its images, without tags; empty if none is its own.
        program: A pattern of commands and arguments.
        ports: Container ports that it has, all of them; empty if others have them, too.
    """

    name: str
    images: str = ""
    program: str = ""
    ports: frozenset[int] = frozenset()


# The first that matches counts; Dynamo's workers run the others.
SERVERS = (
    # https://docs.nvidia.com/dynamo/latest: python -m dynamo.vllm
    InferenceServer("Dynamo", "(^|/)ai-dynamo/", r"\bdynamo\.(vllm|sglang|trtllm)\b"),
    # https://docs.vllm.ai/en/stable/deployment/docker
    InferenceServer("vLLM", "(^|/)vllm(/|-openai$|$)", r"\bvllm serve\b|\bvllm\.entrypoints\."),
    # https://docs.sglang.io/docs/get-started/install
    InferenceServer("SGLang", "(^|/)sglang(/|$)", r"\bsglang(\.launch_server| serve)\b", frozenset({30000})),
    # https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve
    InferenceServer("TensorRT-LLM", "(^|/)tensorrt-llm/release$", r"\btrtllm-serve\b"),
    # https://huggingface.co/docs/text-generation-inference/quicktour
    InferenceServer("TGI", "(^|/)text-generation-inference$", r"\btext-generation-launcher\b"),
    # https://docs.nvidia.com/deeplearning/triton-inference-server: HTTP, gRPC and metrics
    InferenceServer("Triton", "(^|/)tritonserver$", r"\btritonserver\b", frozenset({8000, 8001, 8002})),
    # https://docs.nvidia.com/nim
    InferenceServer("NIM", r"^nvcr\.io/nim/"),
    # https://docs.ray.io/en/latest/serve
    InferenceServer("Ray Serve", program=r"\bserve run\b"),
)
_TAG = re.compile(r"@.*|:[^/]*$")
_LONGEST_IMAGE = 512


def server_of(workload: Workload) -> tuple[str, str]:
    """The inference server in a workload's containers, and by what it is recognised; empty if there is none."""
    try:
        containers = list(_containers(msgspec.json.decode(workload.spec))) if workload.spec else []
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    images = [_image(spec["image"]) for spec in containers]
    programs = [" ".join(_texts(spec.get("command")) + _texts(spec.get("args"))) for spec in containers]
    ports = [set(_ports(spec.get("ports"))) for spec in containers]
    for server in SERVERS:
        if server.program and any(re.search(server.program, program) for program in programs):
            return server.name, "its arguments"
    for server in SERVERS:
        if server.images and any(re.search(server.images, image) for image in images):
            return server.name, "its image"
    for server in SERVERS:
        if server.ports and any(server.ports <= found for found in ports):
            return server.name, "its ports"
    return "", ""


def _containers(spec: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON
    """Everything with an image, however deep: kinds have their containers in different places."""
    left = [spec]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if "image" in value:
                yield value
            left += value.values()
        elif isinstance(value, list):
            left += value


def _image(value: object) -> str:
    """Remove tag and digest; a NIMService has repository and tag apart."""
    name = value.get("repository") if isinstance(value, dict) else value
    return _TAG.sub("", name) if isinstance(name, str) and len(name) <= _LONGEST_IMAGE else ""


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _ports(value: object) -> Iterator[int]:
    for entry in value if isinstance(value, list) else ():
        port = entry.get("containerPort") if isinstance(entry, dict) else None
        if isinstance(port, int):
            yield port
