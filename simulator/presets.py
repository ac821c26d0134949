"""Ready-made clusters: one for the demo, one for quick tests, one without workloads to try things on.

What is meant to be idle has been idle for the whole last day, and what is meant to be busy has worked in it, at
whatever hour the cluster is started. (The notebooks in use are younger than a day, as somebody sits at a notebook
when it is started; an older one may well have rested for a day.)
"""

import math
from collections.abc import Mapping
from typing import Any

from simulator.spec import (
    Archetype,
    ClusterSpec,
    GpuSpec,
    Kind,
    NodeSpec,
    PriorityClassSpec,
    Sharing,
    TaintSpec,
    WorkloadSpec,
)
from simulator.workloads.draws import DAY_S, HOUR_S, MINUTE_S

PRIORITY_CLASSES = (
    PriorityClassSpec("high-priority", 100_000),
    PriorityClassSpec("medium-priority", 10_000),
    PriorityClassSpec("low-priority", 1_000),
)
_PRODUCT = "nvidia.com/gpu.product"
_H100 = {_PRODUCT: "NVIDIA-H100-80GB-HBM3"}
_A100 = {_PRODUCT: "NVIDIA-A100-SXM4-40GB"}
_L40S = {_PRODUCT: "NVIDIA-L40S-SHARED"}
_T4 = {_PRODUCT: "Tesla-T4"}


def _high(kind: Kind, namespace: str, name: str, archetype: Archetype, **more: Any) -> WorkloadSpec:  # noqa: ANN401
    return WorkloadSpec(kind, namespace, name, archetype, priority_class="high-priority", **more)


def _medium(kind: Kind, namespace: str, name: str, archetype: Archetype, **more: Any) -> WorkloadSpec:  # noqa: ANN401
    return WorkloadSpec(kind, namespace, name, archetype, priority_class="medium-priority", **more)


def _low(kind: Kind, namespace: str, name: str, archetype: Archetype, **more: Any) -> WorkloadSpec:  # noqa: ANN401
    return WorkloadSpec(kind, namespace, name, archetype, priority_class="low-priority", **more)


_DEMO_H100 = (
    _medium(
        Kind.JOB, "training", "moe-finetune", Archetype.OVERALLOCATED,
        gpus=8, busy_gpus=2, age_s=9 * DAY_S, node_selector=_H100,
    ),
    _high(
        Kind.JOB, "training", "llm-pretrain", Archetype.TRAIN_STEADY,
        gpus=4, age_s=5 * DAY_S, node_selector=_H100,
    ),
    _high(
        Kind.DEPLOYMENT, "serving", "assistant-api", Archetype.INFERENCE_DIURNAL,
        replicas=2, age_s=8 * DAY_S, node_selector=_H100,
    ),
    _high(
        Kind.DEPLOYMENT, "serving", "fraud-model", Archetype.ABANDONED,
        works_s=45 * MINUTE_S, age_s=6 * DAY_S, node_selector=_H100,
    ),
    _low(
        Kind.JOB, "batch", "embedding-sweep", Archetype.ZOMBIE,
        works_s=4 * HOUR_S, spins=False, age_s=2 * DAY_S, node_selector=_H100,
    ),
)  # fmt: skip
_DEMO_A100 = (
    _medium(
        Kind.DEPLOYMENT, "serving", "recommender", Archetype.INFERENCE_DIURNAL,
        replicas=3, busy_replicas=2, age_s=7 * DAY_S, node_selector=_A100,
    ),
    _low(
        Kind.DEPLOYMENT, "serving", "vision-v1", Archetype.ABANDONED,
        works_s=40 * MINUTE_S, age_s=12 * DAY_S, node_selector=_A100,
    ),
    _medium(
        Kind.STATEFUL_SET, "research", "alice-notebook", Archetype.NOTEBOOK,
        works_s=1.5 * DAY_S, age_s=4 * DAY_S, node_selector=_A100,
    ),
    _low(
        Kind.DEPLOYMENT, "serving", "image-caption", Archetype.ABANDONED,
        works_s=0.0, age_s=3 * DAY_S, recorded=0.5, node_selector=_A100,
    ),
    _medium(
        Kind.DEPLOYMENT, "serving", "embedder", Archetype.INFERENCE_DIURNAL,
        replicas=2, resource="nvidia.com/mig-3g.20gb", age_s=10 * DAY_S,
    ),
    _low(
        Kind.DEPLOYMENT, "serving", "reranker-old", Archetype.ABANDONED,
        works_s=50 * MINUTE_S, resource="nvidia.com/mig-3g.20gb", age_s=11 * DAY_S,
    ),
    _medium(
        Kind.STATEFUL_SET, "research", "carol-notebook", Archetype.NOTEBOOK,
        works_s=math.inf, resource="nvidia.com/mig-2g.10gb", age_s=22 * HOUR_S,
    ),
    _low(
        Kind.POD, "research", "tutorial", Archetype.ABANDONED,
        works_s=0.0, resource="nvidia.com/mig-1g.5gb", age_s=3 * DAY_S,
    ),
)  # fmt: skip
_DEMO_L40S = (
    _medium(
        Kind.DEPLOYMENT, "serving", "tts", Archetype.INFERENCE_DIURNAL,
        replicas=2, age_s=8 * DAY_S, node_selector=_L40S,
    ),
    _low(
        Kind.DEPLOYMENT, "serving", "ocr", Archetype.INFERENCE_LONGTAIL,
        replicas=2, age_s=6 * DAY_S, node_selector=_L40S,
    ),
    _low(
        Kind.STATEFUL_SET, "research", "bob-notebook", Archetype.ABANDONED,
        works_s=0.0, age_s=3 * DAY_S, node_selector=_L40S,
    ),
    _low(
        Kind.STATEFUL_SET, "research", "dave-notebook", Archetype.NOTEBOOK,
        works_s=1 * DAY_S, age_s=5 * DAY_S, node_selector=_L40S,
    ),
    _medium(
        Kind.STATEFUL_SET, "research", "erin-notebook", Archetype.NOTEBOOK,
        works_s=math.inf, age_s=21 * HOUR_S, node_selector=_L40S,
    ),
    _medium(
        Kind.JOB, "training", "lora-tune", Archetype.TRAIN_STEADY, age_s=1.5 * DAY_S, node_selector=_L40S,
    ),
    _low(
        Kind.JOB, "batch", "label-check", Archetype.TRAIN_STALL, age_s=2.5 * DAY_S, node_selector=_L40S,
    ),
)  # fmt: skip
_DEMO_T4 = (
    _low(
        Kind.DEPLOYMENT, "serving", "old-demo", Archetype.ABANDONED,
        replicas=2, works_s=30 * MINUTE_S, age_s=13 * DAY_S, node_selector=_T4,
    ),
    _low(
        Kind.POD, "research", "debug-shell", Archetype.ABANDONED,
        works_s=20 * MINUTE_S, age_s=3 * DAY_S, node_selector=_T4,
    ),
    _low(
        Kind.JOB, "batch", "render-previews", Archetype.ZOMBIE,
        works_s=4 * HOUR_S, spins=True, age_s=2 * DAY_S, node_selector=_T4,
    ),
)  # fmt: skip

DEMO = ClusterSpec(
    nodes=(
        NodeSpec("h100-a", (GpuSpec("H100-SXM5-80GB"),) * 8),
        NodeSpec("h100-b", (GpuSpec("H100-SXM5-80GB"),) * 8),
        NodeSpec(
            "a100-a",
            (
                *(GpuSpec("A100-SXM4-40GB"),) * 6,
                GpuSpec("A100-SXM4-40GB", mig=("3g.20gb", "3g.20gb")),
                GpuSpec("A100-SXM4-40GB", mig=("3g.20gb", "2g.10gb", "1g.5gb")),
            ),
        ),
        NodeSpec("l40s-a", (GpuSpec("L40S"),) * 4, sharing=Sharing.TIME_SLICING, replicas=4),
        NodeSpec("t4-a", (GpuSpec("T4"),) * 4),
    ),
    priority_classes=PRIORITY_CLASSES,
    workloads=(*_DEMO_H100, *_DEMO_A100, *_DEMO_L40S, *_DEMO_T4),
)
"""Five nodes, 32 GPUs, 23 workloads: every archetype, kind, way of sharing and verdict."""

SMALL = ClusterSpec(
    nodes=(
        NodeSpec("whole", (GpuSpec("H100-SXM5-80GB"),) * 4),
        NodeSpec(
            "shared",
            (GpuSpec("L40S"),) * 2,
            sharing=Sharing.TIME_SLICING,
            replicas=2,
        ),
    ),
    priority_classes=PRIORITY_CLASSES,
    workloads=(
        _high(
            Kind.DEPLOYMENT, "serving", "precious", Archetype.ABANDONED,
            works_s=30 * MINUTE_S, age_s=3 * DAY_S, node_selector=_H100,
        ),
        _low(
            Kind.DEPLOYMENT, "serving", "forgotten", Archetype.ABANDONED,
            replicas=2, works_s=30 * MINUTE_S, age_s=2 * DAY_S, node_selector=_H100,
        ),
        _medium(Kind.JOB, "training", "steady", Archetype.TRAIN_STEADY, age_s=1.5 * DAY_S, node_selector=_H100),
        _low(Kind.STATEFUL_SET, "research", "notebook", Archetype.ABANDONED, works_s=0.0, node_selector=_L40S),
        _low(Kind.POD, "research", "shell", Archetype.ABANDONED, works_s=0.0, node_selector=_L40S),
    ),
)  # fmt: skip
"""Two nodes, six GPUs, five workloads of which one works."""

FLEET = ClusterSpec(
    nodes=(
        NodeSpec(
            "gke-h100", (GpuSpec("H100-SXM5-80GB"),) * 8,
            labels={
                "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                "cloud.google.com/gke-accelerator-count": "8",
                "cloud.google.com/gke-gpu": "true",
                "cloud.google.com/gke-gpu-driver-version": "latest",
                "cloud.google.com/gke-nodepool": "h100",
                "node.kubernetes.io/instance-type": "a3-highgpu-8g",
                "topology.kubernetes.io/region": "us-central1",
                "topology.kubernetes.io/zone": "us-central1-a",
            },
            taints=(TaintSpec("nvidia.com/gpu", "present"),),
        ),
        NodeSpec(
            "eks-a100-mig",
            (
                *(GpuSpec("A100-SXM4-40GB"),) * 4,
                *(GpuSpec("A100-SXM4-40GB", mig=("3g.20gb", "2g.10gb", "1g.5gb")),) * 4,
            ),
            labels={
                "eks.amazonaws.com/nodegroup": "p4d",
                "k8s.amazonaws.com/accelerator": "nvidia-tesla-a100",
                "node.kubernetes.io/instance-type": "p4d.24xlarge",
                "topology.kubernetes.io/region": "us-east-1",
                "topology.kubernetes.io/zone": "us-east-1d",
            },
            taints=(TaintSpec("nvidia.com/gpu", "true"),),
        ),
        NodeSpec(
            "aks-t4-shared", (GpuSpec("T4"),) * 4,
            sharing=Sharing.TIME_SLICING, replicas=4, rename_shared=True,
            labels={
                "accelerator": "nvidia",
                "kubernetes.azure.com/accelerator": "nvidia",
                "kubernetes.azure.com/agentpool": "t4",
                "node.kubernetes.io/instance-type": "Standard_NC64as_T4_v3",
                "topology.kubernetes.io/region": "westeurope",
                "topology.kubernetes.io/zone": "westeurope-1",
            },
            taints=(TaintSpec("sku", "gpu"),),
        ),
        NodeSpec(
            "rack-h100-rdma", (GpuSpec("H100-SXM5-80GB"),) * 8,
            labels={
                "feature.node.kubernetes.io/rdma.available": "true",
                "feature.node.kubernetes.io/rdma.capable": "true",
                "network.nvidia.com/operator.mofed.wait": "false",
                "topology.kubernetes.io/zone": "rack-7",
            },
            resources={"rdma/rdma_shared_device_a": 63},
        ),
        NodeSpec(
            "rack-l40s-mps", (GpuSpec("L40S"),) * 2,
            sharing=Sharing.MPS, replicas=8, labels={"topology.kubernetes.io/zone": "rack-8"},
        ),
        NodeSpec("rack-cpu", labels={"topology.kubernetes.io/zone": "rack-8"}),
    ),
    priority_classes=PRIORITY_CLASSES,
    workloads=(),
)  # fmt: skip
"""Empty nodes as clouds and racks have them: their labels, taints and names of resources; for trying things by hand."""

READY_MADE: Mapping[str, ClusterSpec] = {"demo": DEMO, "small": SMALL, "fleet": FLEET}
