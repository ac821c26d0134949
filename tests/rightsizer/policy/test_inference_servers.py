"""Inference servers that are recognised without their metrics."""

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.findings.no_requests import servers_without_metrics
from rightsizer.model import Measured, ServingLoad, Workload
from rightsizer.policy.recognition import SERVERS, server_of
from rightsizer.usage.serving_metrics import ENGINES
from tests.rightsizer.build import AT, pod, workload


def _serving(name: str = "w", kind: str = "Deployment", **container: Any) -> Workload:
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": "x", **container}]}}}
    return workload(pod(f"{name}-0"), kind=kind, spec=json.dumps(spec).encode())


RECOGNISED: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "vllm": ({"image": "vllm/vllm-openai:v0.11.0"}, ("vLLM", "its image")),
    "vllm-of-a-mirror": ({"image": "registry:5000/mirror/vllm@sha256:0"}, ("vLLM", "its image")),
    "vllm-arguments": ({"command": ["vllm", "serve"], "args": ["org/model"]}, ("vLLM", "its arguments")),
    "vllm-module": (
        {"args": ["-c", "exec python -m vllm.entrypoints.openai.api_server --port 80"]},
        ("vLLM", "its arguments"),
    ),
    "sglang": ({"image": "lmsysorg/sglang:latest"}, ("SGLang", "its image")),
    "sglang-arguments": ({"command": ["python3", "-m", "sglang.launch_server"]}, ("SGLang", "its arguments")),
    "sglang-port": ({"ports": [{"containerPort": 30000}]}, ("SGLang", "its ports")),
    "tensorrt-llm": ({"image": "nvcr.io/nvidia/tensorrt-llm/release:1.2"}, ("TensorRT-LLM", "its image")),
    "tensorrt-llm-arguments": ({"args": ["trtllm-serve", "org/m"]}, ("TensorRT-LLM", "its arguments")),
    "tgi": ({"image": "ghcr.io/huggingface/text-generation-inference:3.3"}, ("TGI", "its image")),
    "triton": ({"image": "nvcr.io/nvidia/tritonserver:25.01-py3"}, ("Triton", "its image")),
    "triton-ports": (
        {"ports": [{"containerPort": port} for port in (8002, 8001, 8000)]},
        ("Triton", "its ports"),
    ),
    "nim": ({"image": "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8"}, ("NIM", "its image")),
    "nim-of-a-nimservice": (
        {"image": {"repository": "nvcr.io/nim/meta/llama", "tag": "1"}},
        ("NIM", "its image"),
    ),
    "dynamo-runs-vllm": (
        {"image": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0", "command": ["python3", "-m", "dynamo.vllm"]},
        ("Dynamo", "its arguments"),
    ),
    "dynamo-image": ({"image": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0"}, ("Dynamo", "its image")),
    "ray-serve": ({"args": ["serve run app:main"]}, ("Ray Serve", "its arguments")),
    "one-port-of-triton": ({"ports": [{"containerPort": 8000}]}, ("", "")),
    "another-program": ({"image": "team/vllm-benchmarks", "args": ["python", "train.py"]}, ("", "")),
    "name-of-a-model": ({"args": ["--model", "org/sglang"]}, ("", "")),
    "nonsense": ({"image": ["x"], "args": {"a": 1}, "ports": [{"containerPort": {}}, 7]}, ("", "")),
}


@pytest.mark.parametrize(("container", "server"), RECOGNISED.values(), ids=RECOGNISED.keys())
def test_server_is_recognised_by_arguments_image_or_ports(
    container: dict[str, Any], server: tuple[str, str]
) -> None:
    """What others have, too, is no proof."""
    assert server_of(_serving(**container)) == server


def test_servers_are_engines() -> None:
    """The plan calls each by the name that its metrics give it."""
    assert {one.name for one in SERVERS} <= {one.name for one in ENGINES}


@hypothesis.given(
    st.recursive(
        st.sampled_from([None, True, 30000, "", "vllm serve", "sglang", "x" * 600]),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["image", "args", "ports", "x"]), inner)
        ),
    )
)
def test_server_of_any_spec_is_found_or_not(spec: object) -> None:
    """Third-party kinds may hold anything."""
    name, by = server_of(workload(spec=json.dumps(spec).encode()))
    assert bool(name) is bool(by)


def _remarks(*items: Workload, known: tuple[Workload, ...] = ()) -> tuple[str, ...]:
    loads = {(one.ref.namespace, one.ref.name): ServingLoad("vLLM") for item in known for one in item.pods}
    return servers_without_metrics(items, Measured(AT, {}, serving={AT - AT: loads}))


def test_servers_without_metrics_are_named() -> None:
    """Their requests are unknown, and nobody sees that otherwise."""
    server = _serving("chat", image="vllm/vllm-openai")
    words = (
        f"Prometheus has no metrics of 1 inference server, so their requests are unknown: {server.ref} (vLLM, by its "
        "image); scrape /metrics of their pods"
    )
    assert _remarks(server) == (words,)
    assert _remarks(server, known=(server,)) == ()
    assert _remarks(_serving("job", kind="Job", image="vllm/vllm-openai"), _serving("x")) == ()
    (many,) = _remarks(*(_serving(f"s{number}", args=["vllm serve"]) for number in range(5)))
    assert many.count("by its arguments") == 3
    assert "and 2 more; " in many
