"""How fast the scheduler extender answers kube-scheduler, over HTTPS, while pods come and go.

5,000 nodes of 8 GPUs, each with four pods of 2, of which every third node has an idle one. `preempt` is asked about 500
nodes, as many as kube-scheduler offers by default (10 %), `prioritize` about all. A process of its own answers.
"""

import argparse
import datetime
import http.client
import multiprocessing
import multiprocessing.connection
import random
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trustme

from rightsizer.cli import prepare
from rightsizer.cli.plan_session import utc_now
from rightsizer.errors import ClusterError
from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.kube.api_objects import PodObject
from rightsizer.kube.cluster import Cluster
from rightsizer.model import (
    Action,
    Decision,
    Finding,
    FindingName,
    Mode,
    ObjectRef,
    Pod,
    Verdict,
    Workload,
)
from rightsizer_extender.extend_command import TURN_S, settle
from rightsizer_extender.extender_endpoint import Extender
from rightsizer_extender.preemption import Preemptible, bound_pod
from rightsizer_extender.preemption_state import PreemptionState, WatchedNode
from rightsizer_extender.question_server import TlsFiles, answering
from rightsizer_extender.victim_charges import VictimCharges

_GPU = "nvidia.com/gpu"
_OFFERED = 500
_UPDATES_PER_S = 200
_RESOURCES = ResourceTable()
_BORN = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def _pod(node: int, number: int) -> dict[str, Any]:
    name = f"w-{node}-{number}"
    requests = {_GPU: "2", "cpu": "8", "memory": "64Gi"}
    return {
        "metadata": {
            "name": name,
            "namespace": f"team-{node % 50}",
            "uid": f"00000000-0000-0000-0000-{node:06d}{number:06d}",
            "creationTimestamp": _BORN.isoformat(),
            "labels": {"app": name, "team": f"team-{node % 50}"},
        },
        "spec": {
            "nodeName": f"node-{node}",
            "priority": 1_000,
            "containers": [{"name": "main", "resources": {"requests": requests, "limits": {_GPU: "2"}}}],
        },
        "status": {"phase": "Running"},
    }


def _decision(pod: Pod) -> Decision:
    ref = ObjectRef("apps/v1", "Deployment", pod.ref.namespace, pod.ref.name, f"of-{pod.ref.uid}")
    workload = Workload(ref, 1, "1", (pod,), 1, {}, {}, {}, {})
    finding = Finding(FindingName.IDLE, Verdict.ACT, ("no activity",), 1.0, activity_mean=0.0)
    return Decision(workload, finding, Verdict.ACT, "rule", Mode.ENFORCE, Action.SCALE_TO_ZERO, frees=2.0)


class _Known(PreemptionState):
    """A state that nothing makes stale."""

    def stale_reason(self) -> str:
        return ""


class _NoCharges(VictimCharges):
    """Charges without an API server, whose two requests would be its latency."""

    def charge(self, units: Iterable[Preemptible]) -> tuple[Preemptible, ...]:
        return tuple(units)


def _no_cluster() -> Cluster:
    message = "this benchmark has no API server"
    raise ClusterError(message)


def _serve(sender: multiprocessing.connection.Connection, nodes: int, files: Sequence[Path]) -> None:
    """The server's process: fill a state, answer, and change pods all the time."""
    prepare()
    sys.setswitchinterval(TURN_S)
    state = _Known(_no_cluster, _RESOURCES, 3600.0, _NoCharges(_no_cluster, "gpu-rightsizer", utc_now))
    offers = {"cpu": "192", "memory": "2Ti", "pods": "110", _GPU: "8"}
    candidates = []
    pods = []
    for node in range(nodes):
        body = {"metadata": {"name": f"node-{node}"}, "status": {"allocatable": offers}}
        state.put_node(msgspec.convert(body, WatchedNode))
        for number in range(4):
            pod = msgspec.convert(_pod(node, number), PodObject)
            pods.append(pod)
            state.put_pod(pod)
            bound = bound_pod(pod, _RESOURCES)
            if number == 0 and node % 3 == 0 and bound is not None and bound.gpu_pod is not None:
                candidates.append(Preemptible(_decision(bound.gpu_pod), (bound.gpu_pod,)))
    state.planned(candidates, began_at=time.monotonic(), run="run", charged="")
    settle()
    extender = Extender(state, lambda *_: None)
    certificate, key, authority = files
    with answering("127.0.0.1:0", extender.routes, TlsFiles(certificate, key, authority)) as port:
        sender.send(port)
        source = random.Random(0)
        while True:
            with state.lock:
                state.put_pod(source.choice(pods))
            time.sleep(1 / _UPDATES_PER_S)


def _urgent(number: int) -> dict[str, Any]:
    pod = _pod(0, 0)
    metadata = {"name": f"urgent-{number}", "namespace": "team-0", "uid": f"urgent-{number}"}
    return {"metadata": metadata, "spec": {**pod["spec"], "nodeName": "", "priority": 100_000}, "status": {}}


def _asked(
    connection: http.client.HTTPSConnection, path: str, questions: Sequence[bytes]
) -> tuple[list[float], bytes]:
    took, answer = [], b""
    for body in questions:
        began = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        took.append((time.perf_counter() - began) * 1000)
    return took, answer


def _preempt(number: int, nodes: int, source: random.Random) -> bytes:
    offered = {
        f"node-{node}": {
            "Pods": [{"UID": _pod(node, 3)["metadata"]["uid"]}],
            "NumPDBViolations": 0,
        }
        for node in source.sample(range(nodes), min(_OFFERED, nodes))
    }
    return msgspec.json.encode(
        {"Pod": _urgent(number), "NodeNameToVictims": None, "NodeNameToMetaVictims": offered}
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--questions", type=int, default=1_000)
    arguments = parser.parse_args()
    source = random.Random(1)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as directory:
        ca, folder = trustme.CA(), Path(directory)
        leaf = ca.issue_cert("127.0.0.1")
        files = [folder / "tls.crt", folder / "tls.key", folder / "ca.crt"]
        files[0].write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(files[1])
        ca.cert_pem.write_to_path(files[2])
        process = context.Process(target=_serve, args=(sender, arguments.nodes, files), daemon=True)
        process.start()
        port = receiver.recv()
        tls = ssl.create_default_context(cafile=files[2])
        tls.load_cert_chain(files[0], files[1])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=tls)
        names = [f"node-{node}" for node in range(arguments.nodes)]
        all_nodes = msgspec.json.encode({"Pod": _urgent(0), "Nodes": None, "NodeNames": names})
        questions = [_preempt(number, arguments.nodes, source) for number in range(arguments.questions)]
        took, answer = _asked(connection, "/preempt", questions)
        assert len(msgspec.json.decode(answer)["NodeNameToMetaVictims"]) == 1
        scored, _ = _asked(connection, "/prioritize", [all_nodes] * arguments.questions)
        process.kill()
    print(
        f"{arguments.nodes} nodes, {arguments.questions} questions each, ms: median, 99th percentile, longest"
    )
    for name, found in (("preempt", took), ("prioritize", scored)):
        percent = statistics.quantiles(found, n=100)[98]
        print(f"{name:<11} {statistics.median(found):6.2f} {percent:6.2f} {max(found):6.2f}")


if __name__ == "__main__":
    main()
