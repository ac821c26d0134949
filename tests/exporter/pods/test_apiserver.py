"""Labels and UIDs of pods, from an API server that forgets, refuses, hangs, lies or is not there."""

import base64
import contextlib
import http.server
import json
import random
import re
import shutil
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import trustme
import yaml

from exporter.errors import StartError
from exporter.pods.apiaccess import ApiServerAccess, from_kubeconfig, in_cluster
from exporter.pods.apihttp import PodApi
from exporter.pods.apiserver import PodWatch
from exporter.pods.podfacts import WantedPodFacts
from simulator.gpus import Process
from simulator.kube import ApiServer, Fault, Rule
from simulator.nodes.devices import Container
from simulator.nodes.kubelet import Allocation
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, Node, eventually, h100, pod

UTIL, USED = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
UP = "gpu_exporter_pod_watch_up"
TOKEN = "exporter-token"
ACCOUNT = "system:serviceaccount:gpu:exporter"
PODS = "/api/v1/pods"
WANTED = WantedPodFacts(uid=True, labels=(re.compile(""),))


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server on which the exporter's account may list and watch pods, and nothing else."""
    with ApiServer(termination_delay_s=0.0) as server:
        server.add_user(TOKEN, ACCOUNT)
        server.allow(Rule(ACCOUNT, verbs=("list", "watch"), resources=("pods",), groups=("",)))
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
        yield server


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Two GPUs, the first of which pod "train" holds."""
    made = make_node(h100(2))
    made.pods.append(pod("train", made.spec.gpu_uuid(0)))
    return made


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> str:
    """The flag that leads the exporter to the API server, as its own account."""
    path = tmp_path / "kubeconfig.json"
    path.write_text(json.dumps(api.kubeconfig(TOKEN)))
    return f"--kubeconfig={path}"


def _create(
    api: ApiServer,
    name: str,
    *,
    node: str = "node-1",
    annotations: Any = None,  # by key
    **labels: str,
) -> dict[str, Any]:
    return api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "ml",
                "labels": labels,
                "annotations": annotations or {},
            },
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
        }
    )


@pytest.mark.driver
@pytest.mark.parametrize(
    "plugin",
    [
        ("aliyun.com/gpu-mem", "{}-_-3", "ALIYUN_COM_GPU_MEM_IDX", "1"),
        ("nvidia.com/gpu", "{}-3", "hami.io/vgpu-devices-allocated", "{},NVIDIA,3000,0:;"),
        ("volcano.sh/vgpu-number", "{}-3", "volcano.sh/vgpu-ids-new", "{},NVIDIA,3000,0:"),
    ],
    ids=["gpushare", "hami", "volcano"],
)
def test_annotation_of_a_scheduler_decides_over_the_device_id(
    plugin: tuple[str, str, str, str], node: Node, api: ApiServer, kubeconfig: str
) -> None:
    """The kubelet's id names GPU 0, the annotation GPU 1, which the pod has."""
    resource, form, annotation, value = plugin
    chosen = value.format(node.spec.gpu_uuid(1))
    _create(api, "serve", annotations={annotation: chosen})
    node.pods[:] = [pod("serve", form.format(node.spec.gpu_uuid(0)), resource=resource)]
    with node.kubelet, node.exporting("--pod-uid", kubeconfig) as exporter:
        eventually(lambda: sorted(exporter.series(UTIL, "gpu", "pod")) == [("0", ""), ("1", "serve")])
        eventually(lambda: exporter.series("gpu_allocated", "gpu") == {("0",): 0, ("1",): 1})


@pytest.mark.driver
def test_annotation_of_hami_names_a_mig_instance(
    make_node: MakeNode, api: ApiServer, kubeconfig: str
) -> None:
    """HAMi's other annotation and the kubelet name the instance's GPU, which the pod does not have."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("2g.10gb", "3g.20gb")),)))
    uuid = node.spec.gpu_uuid(0)
    node.kubelet.capacity = (Allocation("nvidia.com/gpu", tuple(f"{uuid}-{n}" for n in range(10))),)
    node.kubelet.start()
    with node.exporting("--pod-uid", kubeconfig) as exporter:
        numbers = {
            labels[0]: labels[1] for labels in exporter.series(USED, "GPU_I_PROFILE", "GPU_I_ID") if labels[0]
        }
        made = [{"gpuUUID": uuid, "profile": "2g.10gb", "gpuInstanceID": int(numbers["2g.10gb"])}]
        annotations = {"hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,1,0:;"}
        _create(api, "serve", annotations={**annotations, "hami.io/vgpu-mig-allocations": json.dumps(made)})
        node.pods[:] = [pod("serve", f"{uuid}-3")]
        held = [("", ""), ("2g.10gb", "serve"), ("3g.20gb", "")]
        eventually(lambda: sorted(exporter.series(USED, "GPU_I_PROFILE", "pod")) == held)
        assert exporter.series("gpu_allocated", "GPU_I_PROFILE") == {("2g.10gb",): 1}


def _end(api: ApiServer, name: str, phase: str = "Succeeded") -> None:
    api.patch("Pod", "ml", name, {"status": {"phase": phase}}, subresource="status")


def _asked(api: ApiServer, **wanted: str) -> list[dict[str, str]]:
    """The queries of all requests for pods that have these parameters."""
    found = [
        dict(parse_qsl(one.query, keep_blank_values=True)) for one in api.requests.all() if one.path == PODS
    ]
    return [query for query in found if wanted.items() <= query.items()]


def _series(exporter: Exporter, *labels: str) -> list[tuple[str, ...]]:
    return sorted(exporter.series(UTIL, "gpu", "pod", *labels))


@pytest.mark.driver
def test_api_server_without_pod_labels_is_never_queried(node: Node, api: ApiServer) -> None:
    """In a pod, with an account at hand, the exporter leaves the API server alone."""
    _create(api, "train", team="a")
    host, _, port = api.url.removeprefix("http://").partition(":")
    variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    with node.kubelet, node.exporting(variables=variables) as exporter:
        listed = node.kubelet.calls["List"]
        eventually(lambda: node.kubelet.calls["List"] > listed + 5)
        assert _series(exporter, "pod_uid", "pod_label_team") == [("0", "train", "", ""), ("1", "", "", "")]
        assert exporter.series(UP) == {}
        # Main, sampler, HTTP, XID errors', the driver's and two GPUs'; a request's own ends a little after its answer.
        eventually(lambda: exporter.process_threads() == 7)
    assert api.requests.all() == []


@pytest.mark.driver
def test_pod_uid_and_labels_are_added(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """A held GPU's series have the pod's UID and those of its labels that are allowed."""
    labels = {"team": "vision", "app.kubernetes.io/name": "bert", "secret": "x", "steam": "x", "teams": "x"}
    uid = _create(api, "train", **labels)["metadata"]["uid"]
    flags = ("--pod-uid", "--pod-labels=team,app.kubernetes.io/*", kubeconfig)
    with node.kubelet, node.exporting(*flags) as exporter:
        names = ("pod_uid", "pod_label_team", "pod_label_app_kubernetes_io_name")
        assert _series(exporter, *names) == [("0", "train", uid, "vision", "bert"), ("1", *[""] * 4)]
        found = {label for sample in exporter.families()[UTIL].samples for label in sample.labels}
        assert {label for label in found if label.startswith("pod_label_")} == set(names[1:])
        assert exporter.series(UP) == {(): 1}


@pytest.mark.driver
def test_api_query_selects_this_nodes_pods(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """Every request names the node, and the verbs are list and watch of pods: the account may do nothing else."""
    _create(api, "train", team="a")
    _create(api, "elsewhere", node="node-2", team="b")
    with node.kubelet, node.exporting("--pod-labels=*", kubeconfig) as exporter:
        eventually(lambda: _asked(api, watch="1"))
        assert ("0", "train", "a") in _series(exporter, "pod_label_team")
    requests = api.requests.all()
    assert {(one.method, one.path, one.user, one.code) for one in requests} == {("GET", PODS, ACCOUNT, 200)}
    assert {query["fieldSelector"] for query in _asked(api)} == {"spec.nodeName=node-1"}
    assert _asked(api)[0]["resourceVersion"] == "0"


@pytest.mark.driver
def test_process_pods_are_named_by_the_api_server(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """Without mounted pod logs, the API server maps a process's UID to its pod; without it, nothing does."""
    uid = _create(api, "train", team="a")["metadata"]["uid"]
    inside = Container("ml", "train", uid, "main")
    status = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{inside.id}"}]}
    api.patch("Pod", "ml", "train", {"status": status}, subresource="status")
    node.host.start(4711, inside, started_s=time.time() - 3600)
    node.board.set_processes(0, [Process(4711, 2**30)])
    shutil.rmtree(node.host.logs / "pods")
    memory, off = (
        ("gpu_pod_memory_used_bytes", "gpu", "pod", "container"),
        "gpu_exporter_process_attribution_off",
    )
    with node.kubelet, node.exporting("--pod-uid", kubeconfig) as exporter:
        eventually(lambda: exporter.series(*memory).get(("0", "train", "main")) == 2**30)
        assert exporter.series(off) == {}
    with node.kubelet, node.exporting() as exporter:
        assert exporter.series(off, "reason") == {("no_pod_names",): 1}
        assert exporter.series(*memory) == {}
        assert len(exporter.messages("attributing processes to pods is off")) == 1


@pytest.mark.driver
def test_pod_changes_are_watched(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """Labels change, pods are replaced under the same name, pods appear: by one list and one watch."""
    first = _create(api, "train", team="a")["metadata"]["uid"]
    with node.kubelet, node.exporting("--pod-labels=team", "--pod-uid", kubeconfig) as exporter:

        def look() -> tuple[str, ...]:
            return _series(exporter, "pod_label_team", "pod_uid")[0][2:]

        assert look() == ("a", first)
        api.patch("Pod", "ml", "train", {"metadata": {"labels": {"team": "b"}}})
        eventually(lambda: look() == ("b", first))
        api.delete("Pod", "ml", "train", grace_s=0)
        eventually(lambda: look() == ("", ""))
        second = _create(api, "train", team="c")["metadata"]["uid"]
        eventually(lambda: look() == ("c", second))
        assert exporter.series(UP) == {(): 1}
    assert len(_asked(api, limit="100")) == 1


@pytest.mark.driver
def test_colliding_pod_labels_are_both_served(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """Two keys that Prometheus would write alike do not overwrite each other."""
    _create(api, "train", **{"a.b": "dot", "a_b": "line"})
    with node.kubelet, node.exporting("--pod-labels=a*", kubeconfig) as exporter:
        names = ("pod_label_a_b_conflict1", "pod_label_a_b_conflict2", "pod_label_a_b")
        assert _series(exporter, *names)[0][2:] == ("dot", "line", "")


@pytest.mark.driver
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pod_holds_no_device(phase: str, node: Node, api: ApiServer, kubeconfig: str) -> None:
    """The phase shows that a pod has ended although the kubelet still lists it, also if no other pod needs the GPU."""
    _create(api, "train")
    with node.kubelet, node.exporting("--pod-uid", kubeconfig) as exporter:
        assert _series(exporter) == [("0", "train"), ("1", "")]
        _end(api, "train", phase)
        eventually(lambda: _series(exporter) == [("0", ""), ("1", "")])
        assert exporter.series("gpu_allocated", "gpu") == {("0",): 0, ("1",): 0}


@pytest.mark.driver
def test_pod_phases_settle_disputed_devices(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """Of two pods with one GPU from the start, the one that has ended is not the one."""
    _create(api, "train")
    _create(api, "other")
    _end(api, "train")
    node.pods.append(pod("other", node.spec.gpu_uuid(0)))
    with node.kubelet, node.exporting("--pod-uid", kubeconfig) as exporter:
        assert _series(exporter) == [("0", "other"), ("1", "")]
        assert exporter.series("gpu_exporter_unattributed_devices", "reason")["ambiguous",] == 0


@pytest.mark.driver
def test_expired_version_is_listed_again(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """A watch that begins too far back is answered with 410: the pods are listed again, and nothing is lost."""
    _create(api, "train", team="a")
    api.inject(Fault(path=PODS, status=410, times=1, delay_s=0.0))
    with node.kubelet, node.exporting("--pod-labels=team", kubeconfig) as exporter:
        eventually(lambda: _series(exporter, "pod_label_team")[0][2] == "a")
        eventually(lambda: exporter.series(UP) == {(): 1})
        assert exporter.messages("watching this node's pods") == []
        # the list after an expiry is not from memory, which may have expired as well
        assert [query["resourceVersion"] for query in _asked(api, limit="100")] == ["0", ""]


@pytest.mark.driver
def test_compaction_loses_no_pod(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """A server that forgets its history under a running watch is listed again, in time for the next change."""
    _create(api, "train", team="a")
    with node.kubelet, node.exporting("--pod-labels=team", kubeconfig) as exporter:
        for team in ("b", "c"):
            with api.batch():
                api.patch("Pod", "ml", "train", {"metadata": {"labels": {"team": team}}})
                api.expire_history()
            expected = ("0", "train", team)
            eventually(lambda expected=expected: expected in _series(exporter, "pod_label_team"))  # type: ignore[misc]
        assert len(_asked(api, limit="100")) > 1
        eventually(lambda: exporter.series(UP) == {(): 1})


@pytest.mark.driver
def test_forbidden_query_costs_only_labels(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """Without the right to list, series go on without labels; when the right comes, so do they."""
    _create(api, "train", team="a")
    api.inject(Fault(path=PODS, status=403, times=None, body={"message": "no\nnot you"}))
    with node.kubelet, node.exporting("--pod-labels=team", kubeconfig) as exporter:
        assert _series(exporter, "pod_label_team") == [("0", "train", ""), ("1", "", "")]
        assert exporter.series(UP) == {(): 0}
        assert exporter.get("/readyz")[0] == 200
        eventually(lambda: len(_asked(api)) >= 3)
        (message,) = exporter.messages("watching this node's pods")
        assert "403" in message
        assert "needs list and watch of pods" in message
        api.clear_faults()
        eventually(lambda: _series(exporter, "pod_label_team")[0][2] == "a")
        assert exporter.series(UP) == {(): 1}


@pytest.mark.driver
def test_outage_keeps_known_pods(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """When the API server goes, the watch is reported down, and labels stay for a while."""
    _create(api, "train", team="a")
    with node.kubelet, node.exporting("--pod-labels=team", kubeconfig) as exporter:
        assert _series(exporter, "pod_label_team")[0][2] == "a"
        api.stop()
        eventually(lambda: exporter.series(UP) == {(): 0})
        assert _series(exporter, "pod_label_team")[0][2] == "a"
        assert exporter.stop() == 0


@pytest.mark.driver
def test_hung_api_server_delays_no_scrape(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """Cycles and scrapes go on while the API server does not answer; only the start waits for it, and not for long."""
    api.inject(Fault(path=PODS, times=None, delay_s=60))
    with node.kubelet, node.exporting("--pod-uid", kubeconfig) as exporter:
        assert exporter.series(UP) == {(): 0}
        node.pods[:] = [pod("serve", node.spec.gpu_uuid(1))]
        eventually(lambda: _series(exporter) == [("0", ""), ("1", "serve")])


@pytest.mark.driver
def test_once_waits_for_pod_labels(node: Node, api: ApiServer, kubeconfig: str) -> None:
    """A single exposition has them, too."""
    uid = _create(api, "train")["metadata"]["uid"]
    with node.kubelet:
        done = node.once(
            "--once",
            "--pod-uid",
            kubeconfig,
            "--node-name=node-1",
            f"--pod-resources-socket={node.kubelet.socket}",
        )
    assert done.code == 0
    assert f'pod_uid="{uid}"' in done.out


@pytest.mark.slow
@pytest.mark.driver
@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        pytest.param(["--pod-uid"], {}, "set --kubeconfig", id="not-in-a-pod"),
        pytest.param(
            ["--pod-uid"],
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            "automountServiceAccountToken",
            id="no-token",
        ),
        pytest.param(["--pod-uid", "--kubeconfig=/no/such"], {}, "No such file", id="no-kubeconfig"),
        pytest.param(["--pod-labels=*", "KUBECONFIG"], {}, "set --node-name or NODE_NAME", id="no-node"),
        pytest.param(
            ["--pod-uid", "KUBECONFIG", "--node-name=a,metadata.name=b"],
            {},
            "set --node-name",
            id="two-selectors",
        ),
        pytest.param(
            ["--pod-uid", "KUBECONFIG", "--node-name=a", "--pod-resources-socket="],
            {},
            "is empty",
            id="no-pods",
        ),
        pytest.param([], {"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true"}, "--kubeconfig", id="dcgms-uid"),
        pytest.param(
            [], {"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true"}, "--kubeconfig", id="dcgms-labels"
        ),
    ],
)
def test_impossible_pod_settings_are_refused(
    flags: list[str], variables: dict[str, str], words: str, node: Node, kubeconfig: str
) -> None:
    """Labels that cannot be had are said at the start, with what would help."""
    done = node.once("--once", *(kubeconfig if flag == "KUBECONFIG" else flag for flag in flags), **variables)
    assert (done.code, done.out) == (1, "")
    assert words in done.err


@pytest.mark.driver
@pytest.mark.parametrize(
    ("variables", "found"),
    [
        pytest.param({"ENABLE_POD_LABELS": "true"}, ("a", "b"), id="all"),
        pytest.param({"ENABLE_POD_LABELS": "true", "POD_LABEL_ALLOWLIST_REGEX": "^te, x$"}, ("a", ""), id="some"),
        pytest.param({"ENABLE_POD_LABELS": "false", "POD_LABEL_ALLOWLIST_REGEX": "^te"}, ("", ""), id="off"),
        pytest.param({"POD_LABEL_ALLOWLIST_REGEX": "^te"}, ("", ""), id="regex-alone"),
    ],
)  # fmt: skip
def test_dcgm_variables_for_pod_labels_are_used(
    variables: dict[str, str], found: tuple[str, str], node: Node, api: ApiServer, kubeconfig: str
) -> None:
    """They choose labels as in dcgm-exporter; the label names have gpu-exporter's prefix."""
    _create(api, "train", team="a", other="b")
    variables = {f"DCGM_EXPORTER_KUBERNETES_{name}": value for name, value in variables.items()}
    with node.kubelet, node.exporting(kubeconfig, variables=variables) as exporter:
        assert _series(exporter, "pod_label_team", "pod_label_other")[0][2:] == found
    assert bool(api.requests.all()) == bool(any(found))


# --- the watch by itself, against servers that no Kubernetes would be


class _Rude(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next of the server's speeches, then with the last one for ever."""

    server: "_RudeServer"

    def do_GET(self) -> None:
        """Answer."""
        speeches = self.server.speeches
        self.server.asked.append(dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True)))
        self.wfile.write(speeches.pop(0) if len(speeches) > 1 else speeches[0])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - BaseHTTPRequestHandler's name
        """Nothing."""


class _RudeServer(http.server.ThreadingHTTPServer):
    speeches: list[bytes]
    asked: list[dict[str, str]]


@contextlib.contextmanager
def _rude(*speeches: bytes) -> Iterator[_RudeServer]:
    with _RudeServer(("127.0.0.1", 0), _Rude) as server:
        server.speeches, server.asked = list(speeches), []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def _rude_watch(*speeches: bytes) -> Iterator[tuple[PodWatch, list[dict[str, str]]]]:
    """A watch of such a server, and the queries that it gets."""
    with (
        _rude(*speeches) as server,
        _watching(ApiServerAccess("127.0.0.1", server.server_address[1])) as watch,
    ):
        yield watch, server.asked


def _item(name: str, *, uid: str = "u", version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": version}}


def _json(document: object) -> bytes:
    return _ok(json.dumps(document).encode())


def _ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def _watching(access: ApiServerAccess, **options: Any) -> Iterator[PodWatch]:
    options = {"clock": time.monotonic, "chance": random.random, **options}
    watch = PodWatch(PodApi(access, "node-1"), WANTED, **options)
    watch.start(wait_s=5.0)
    yield watch
    watch.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "pod-watch"]


_HASH, _UID = "0" * 32, "0f7b3c2a-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("claimed", "names"),
    [
        pytest.param({"static": _HASH}, {_HASH: "static"}, id="static-pod"),
        pytest.param({"z": _UID}, {}, id="uid-of-another-pod"),
        pytest.param({"static": _HASH, "z": _HASH}, {}, id="hash-of-another-pod"),
    ],
)
def test_pod_watch_hash_of_a_configuration_takes_no_pods_place(
    claimed: dict[str, str], names: dict[str, str]
) -> None:
    """Anybody may annotate a pod with it: the work of another pod would count for this one."""
    pods = [_item("victim", uid=_UID)]
    for name, text in claimed.items():
        one = _item(name, uid=f"uid-of-{name}")
        one["metadata"]["annotations"] = {"kubernetes.io/config.hash": text}
        pods.append(one)
    with _rude_watch(_json({"metadata": {"resourceVersion": "1"}, "items": pods})) as (watch, _):
        found = {uid: name for uid, (_, name) in watch.known().names.items()}
    expected = {_UID: "victim", **{f"uid-of-{name}": name for name in claimed}, **names}
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "speech",
    [
        pytest.param(b"", id="hangs-up"),
        pytest.param(b"hello\r\n", id="no-http"),
        pytest.param(_ok(b""), id="nothing"),
        pytest.param(_ok(b"<html>"), id="html"),
        pytest.param(_ok(b"[1]"), id="list"),
        pytest.param(_ok(b"[" * 10**5), id="deep"),
        pytest.param(_ok(b'{"items":[1,{"metadata":3}]}'), id="no-pods"),
        pytest.param(_ok(b'{"items":[{"metadata":{"name":"\xf8"}}]}'), id="no-utf8"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", id="cut-off"),
        pytest.param(b"HTTP/1.1 503 No\r\nRetry-After: x\r\nContent-Length: 0\r\n\r\n", id="busy"),
        pytest.param(_ok(b" " * (33 << 20)), id="endless"),
    ],
)
def test_any_answer_to_the_watch_is_survived(speech: bytes) -> None:
    """An answer that is none is a failure that is retried, not an end of the thread."""
    with _rude(speech) as server, _watching(ApiServerAccess("127.0.0.1", server.server_address[1])) as watch:
        eventually(lambda: len(server.asked) >= 2)
        assert watch.known().up is False
        assert watch.known().details == {}


def test_half_a_surrogate_in_a_label_is_replaced() -> None:
    """JSON can hold text that UTF-8 cannot: it is replaced before it is known."""
    item = b'{"metadata":{"name":"p","namespace":"n","uid":"u\\ud800","labels":{"k\\udfff":"v\\ud800"}}}'
    with _rude_watch(_ok(b'{"items":[' + item + b"]}"), b"") as (watch, _):
        (details,) = watch.known().details.values()
    assert (details.uid, details.labels) == ("u?", (("pod_label_k_", "v?"),))


def test_pods_of_a_whole_cluster_are_refused() -> None:
    """A server that ignores the selection cannot fill the memory: more pods than a node can have are an error."""
    items = b",".join(
        b'{"metadata":{"name":"p%d","namespace":"n","uid":"u"}}' % number for number in range(2001)
    )
    with _rude_watch(_ok(b'{"items":[' + items + b"]}")) as (watch, asked):
        eventually(lambda: len(asked) >= 2)
        assert watch.known().details == {}
        assert watch.known().up is False


def test_watch_that_ends_at_once_is_not_a_busy_loop() -> None:
    """A server that lists well and ends each watch at once is asked more and more rarely."""
    listed, ended = _ok(b'{"metadata":{"resourceVersion":"5"},"items":[]}'), _ok(b"")
    with _rude(listed, ended) as server, _watching(ApiServerAccess("127.0.0.1", server.server_address[1])):
        until = time.monotonic() + 2
        eventually(lambda: time.monotonic() > until)
        assert 2 <= len(server.asked) <= 6


def test_pages_of_a_list_are_joined() -> None:
    """A list that comes in pages is complete, at the version of its last page."""
    first = {"metadata": {"continue": "next", "resourceVersion": "7"}, "items": [_item("a")]}
    last = {"metadata": {"resourceVersion": "7"}, "items": [_item("b")]}
    with _rude_watch(_json(first), _json(last), b"") as (watch, asked):
        assert set(watch.known().details) == {("n", "a"), ("n", "b")}
        eventually(lambda: len(asked) >= 3)
        assert asked[1]["continue"] == "next"
        assert (asked[2]["watch"], asked[2]["resourceVersion"]) == ("1", "7")


def test_broken_watch_continues_where_it_ended() -> None:
    """After the connection broke, the watch begins after the last event; a late deletion spares a pod's successor."""
    listed = {"metadata": {"resourceVersion": "5"}, "items": [_item("a"), _item("b")]}
    events = [
        {"type": "DELETED", "object": _item("a", uid="older", version="6")},
        {"type": "DELETED", "object": _item("b", version="7")},
        {"type": "ADDED", "object": _item("c", version="8")},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
    ]
    stream = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    with _rude_watch(_json(listed), _ok(stream + b'{"type":"ADD'), b"") as (watch, asked):
        eventually(lambda: len(asked) >= 3)
        assert set(watch.known().details) == {("n", "a"), ("n", "c")}
        assert [query.get("resourceVersion") for query in asked[:3]] == ["0", "5", "9"]


def test_expired_watch_is_listed_again() -> None:
    """410 can also come as an event of the watch; what had gone meanwhile is gone."""
    stream = json.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}).encode() + b"\n"
    before = {"metadata": {"resourceVersion": "5"}, "items": [_item("a")]}
    after = {"metadata": {"resourceVersion": "9"}, "items": [_item("b")]}
    with _rude_watch(_json(before), _ok(stream), _json(after), b"") as (watch, asked):
        eventually(lambda: set(watch.known().details) == {("n", "b")})
        assert [query.get("resourceVersion") for query in asked[:3]] == ["0", "5", ""]


def test_known_pods_are_dropped_after_a_long_outage(api: ApiServer) -> None:
    """Five minutes without the API server, and labels and phases are no longer drop_implausible_changes."""
    _create(api, "train", team="a")
    now = 1000.0
    host, _, port = api.url.removeprefix("http://").partition(":")
    access = ApiServerAccess(host, int(port), token=lambda: TOKEN)
    with _watching(access, clock=lambda: now) as watch:
        assert watch.known().up is True
        api.stop()
        eventually(lambda: not watch.known().up)
        now += 299
        assert watch.known().details != {}
        now += 2
        assert (watch.known().details, watch.known().has_ended) == ({}, {})


# --- as a pod's service account, over TLS


class _Tls(socketserver.ThreadingTCPServer):
    """Ends TLS in front of an API server that has none."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, context: ssl.SSLContext, upstream: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Pump)
        self.context, self.upstream = context, upstream


class _Pump(socketserver.BaseRequestHandler):
    server: _Tls

    def handle(self) -> None:
        """Carry the request over, then the answer back until its end."""
        with (
            contextlib.suppress(OSError),
            self.server.context.wrap_socket(self.request, server_side=True) as client,
            socket.create_connection(self.server.upstream) as upstream,
        ):
            request = b""
            while b"\r\n\r\n" not in request:
                request += client.recv(65536)
            upstream.sendall(request)
            while data := upstream.recv(65536):
                client.sendall(data)


@pytest.fixture
def account(api: ApiServer, tmp_path: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """What a pod sees of its account: variables, and a folder with its token and the cluster's authority."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    (tmp_path / "token").write_text(TOKEN + "\n")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    host, _, port = api.url.removeprefix("http://").partition(":")
    with _Tls(context, (host, int(port))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        tls_port = str(server.server_address[1])
        yield {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": tls_port}, tmp_path
        server.shutdown()
        thread.join()


def test_service_account_authenticates(api: ApiServer, account: tuple[dict[str, str], Path]) -> None:
    """The server's certificate is verified, and a replaced token is read again."""
    uid = _create(api, "train", team="a")["metadata"]["uid"]
    environment, folder = account
    with _watching(in_cluster(environment, folder)) as watch:
        assert watch.known().details["ml", "train"].uid == uid
        api.access.revoke(TOKEN)
        api.add_user("second", ACCOUNT)
        (folder / "token").write_text("second")
    with _watching(in_cluster(environment, folder)) as watch:
        assert watch.known().up is True


def test_replaced_token_is_used_without_a_restart(account: tuple[dict[str, str], Path]) -> None:
    """Tokens of accounts live for an hour: 401 ends when the file holds the next one."""
    environment, folder = account
    (folder / "token").write_text("expired")
    with _watching(in_cluster(environment, folder)) as watch:
        assert watch.known().up is False
        (folder / "token").write_text(TOKEN)
        eventually(lambda: watch.known().up)


def test_unknown_authority_is_not_trusted(api: ApiServer, account: tuple[dict[str, str], Path]) -> None:
    """A server with a certificate of someone else's never sees the token."""
    environment, folder = account
    (folder / "ca.crt").write_bytes(trustme.CA().cert_pem.bytes())
    with _watching(in_cluster(environment, folder)) as watch:
        assert watch.known().up is False
    assert api.requests.all() == []


def test_kubeconfig_with_authority_is_used(api: ApiServer, account: tuple[dict[str, str], Path]) -> None:
    """A kubeconfig leads to the same server, with the authority in it or beside it, and the token likewise."""
    _create(api, "train")
    environment, folder = account
    config = api.kubeconfig(TOKEN)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    cluster["server"] = f"https://127.0.0.1:{environment['KUBERNETES_SERVICE_PORT']}"
    path = folder / "config"
    for change in ({"certificate-authority": "ca.crt"}, None):
        if change:
            cluster |= change
        else:
            del cluster["certificate-authority"], user["token"]
            user["tokenFile"] = "token"
            cluster["certificate-authority-data"] = base64.b64encode(
                (folder / "ca.crt").read_bytes()
            ).decode()
        path.write_text(json.dumps(config))
        with _watching(from_kubeconfig(path)) as watch:
            assert set(watch.known().details) == {("ml", "train")}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"current-context": "other"}, id="no-such-context"),
        pytest.param({"clusters": []}, id="no-cluster"),
        pytest.param({"users": [{"name": "kubernetes-admin", "user": {}}]}, id="no-token"),
        pytest.param(
            {"users": [{"name": "kubernetes-admin", "user": {"token": TOKEN, "as": "jane"}}]},
            id="impersonation",
        ),
        pytest.param({"users": 3}, id="nonsense"),
        pytest.param(
            {"clusters": [{"name": "simulator", "cluster": {"server": "file:///x"}}]}, id="no-server"
        ),
    ],
)
def test_kubeconfig_without_a_usable_server_is_refused(
    change: dict[str, Any], api: ApiServer, tmp_path: Path
) -> None:
    """What is missing is said, with how to write one that works."""
    path = tmp_path / "config"
    path.write_text(json.dumps({**api.kubeconfig(TOKEN), **change}))
    with pytest.raises(StartError, match="kubectl config view"):
        from_kubeconfig(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("apiVersion: v1", "kubectl config view", id="no-context"),
        pytest.param("- a list", "kubectl config view", id="no-mapping"),
        pytest.param("users: [{token: secret", "line 1: not valid YAML$", id="not-yaml"),
    ],
)
def test_kubeconfig_without_a_config_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """A file that is not a kubeconfig is refused, and its content is not repeated."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(StartError, match=message) as raised:
        from_kubeconfig(path)
    assert "secret" not in str(raised.value)


def test_kubeconfig_token_file_counts_before_token(api: ApiServer, tmp_path: Path) -> None:
    """As for kubectl."""
    path, document = tmp_path / "config", api.kubeconfig(TOKEN)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    document["users"][0]["user"] = {"token": "old", "tokenFile": "token"}
    path.write_text(json.dumps(document))
    with _watching(from_kubeconfig(path)) as watch:
        assert watch.known().up


def test_kubeconfig_in_yaml_is_read(api: ApiServer, tmp_path: Path) -> None:
    """YAML with comments, anchors and block style is read, as kubectl writes and takes it."""
    path = tmp_path / "config"
    path.write_text("# the current context\n" + yaml.safe_dump(api.kubeconfig(TOKEN)))
    with _watching(from_kubeconfig(path)) as watch:
        assert watch.known().up
