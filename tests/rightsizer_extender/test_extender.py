"""The HTTP edge of the scheduler extender: what kube-scheduler sends, what others might, and TLS."""

import contextlib
import datetime
import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from rightsizer.cli.http_endpoint import MOST_CONNECTIONS
from rightsizer.config import ClusterSettings
from rightsizer.errors import ConfigurationError
from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.kube import watched
from rightsizer.kube.api_objects import PodObject
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Fleet, Plan
from rightsizer.planning.breaker import NOTHING, Pause, with_pause
from rightsizer.policy.limits import Budget, Per
from rightsizer_extender import preemption_state
from rightsizer_extender.extender_endpoint import Extender
from rightsizer_extender.preemption import (
    Answer,
    Preemptible,
    Preemptor,
    VictimChoice,
    Victims,
    bound_pod,
    candidates_of,
)
from rightsizer_extender.preemption_state import PreemptionState
from rightsizer_extender.question_server import MAX_BODY_BYTES, TlsFiles, answering
from rightsizer_extender.victim_charges import VictimCharges, parse_charges, read_charges
from simulator.kube import Fault
from tests.rightsizer.build import pod, policy, rule, workload
from tests.rightsizer.world import World
from tests.rightsizer_extender.test_preemption import GPU, decision_of
from tests.waiting import wait_until

OWN = "gpu-rightsizer"
URGENT = {
    "metadata": {"name": "urgent", "namespace": "research", "uid": "uid-urgent"},
    "spec": {
        "priority": 100_000,
        "containers": [{"name": "main", "resources": {"requests": {GPU: "2"}, "limits": {GPU: "2"}}}],
    },
    "status": {},
}


class _Asked:
    """An extender on a port, and what it said about its answers."""

    def __init__(self, state: PreemptionState) -> None:
        self.told: list[tuple[str, VictimChoice | None]] = []
        self.extender = Extender(state, self._tell)

    def _tell(self, verb: str, preemptor: Preemptor, choice: VictimChoice | None) -> None:
        assert str(preemptor) == "research/urgent"
        self.told.append((verb, choice))


def _state(world: World | None = None, *, oldest_s: float = 60.0) -> PreemptionState:
    settings = ClusterSettings(world.write_kubeconfig()) if world else None

    def connect() -> Cluster:
        assert settings is not None
        return Cluster(settings)

    return PreemptionState(connect, ResourceTable(), oldest_s, VictimCharges(connect, OWN, _now))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _planned(
    state: PreemptionState,
    candidates: Sequence[Preemptible],
    charged: str = "",
    *,
    began_at: float | None = None,
) -> None:
    """A plan that knows of these charges, and ends now."""
    at = time.monotonic() if began_at is None else began_at
    state.planned(candidates, began_at=at, run="run", charged=charged)


def _post(
    port: int, path: str, body: bytes, *, context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, bytes]:
    connection: http.client.HTTPConnection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    if context is not None:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.read()


def _question(**victims: list[str]) -> bytes:
    offered = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
        for node, uids in victims.items()
    }
    return json.dumps({"Pod": URGENT, "NodeNameToVictims": None, "NodeNameToMetaVictims": offered}).encode()


@pytest.fixture
def port() -> Iterator[int]:
    """An extender without a plan."""
    with answering("127.0.0.1:0", _Asked(_state()).extender.routes, None) as found:
        yield found


def test_preempt_without_a_plan_returns_what_was_offered(port: int) -> None:
    """A state that is too old answers for nobody."""
    status, answer = _post(port, "/preempt", _question(n1=["a", "b"]))
    expected = {"n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 0}}
    assert (status, json.loads(answer)) == (200, {"NodeNameToMetaVictims": expected})


def test_prioritize_without_a_plan_scores_all_nodes_alike(port: int) -> None:
    """kube-scheduler's own scores decide."""
    body = json.dumps({"Pod": URGENT, "Nodes": None, "NodeNames": ["n1", "n2"]}).encode()
    status, answer = _post(port, "/prioritize", body)
    assert (status, json.loads(answer)) == (200, [{"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 0}])


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/preempt", b"", "cannot be read"),
        ("/preempt", b"[" * 5_000, "cannot be read"),
        ("/preempt", b"{}", "missing required field `Pod`"),
        ("/preempt", b'{"Pod": {"metadata": {"name": 7}}}', "Expected `str`, got `int`"),
        ("/preempt", json.dumps({"Pod": URGENT}).encode(), "nodeCacheCapable: true"),
        ("/prioritize", json.dumps({"Pod": URGENT}).encode(), "nodeCacheCapable: true"),
        ("/prioritize", b'{"Pod": "\xff"}', "cannot be read"),
    ],
)
def test_invalid_question_is_answered_400_with_words(port: int, path: str, body: bytes, words: str) -> None:
    """kube-scheduler logs the code; a person with curl reads the words. The server goes on."""
    status, answer = _post(port, path, body)
    assert status == 400
    assert words in answer.decode()
    assert _post(port, "/preempt", _question())[0] == 200


def test_question_too_large_is_refused_unread(port: int) -> None:
    """Only its length is sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(
            f"POST /preempt HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    assert _post(port, "/filter", b"{}")[0] == 404
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"POST /preempt HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 411 ")


def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    """Clients open more connections than are served, and send nothing or part of a request; with and without TLS."""
    authority = _Authority(tmp_path)
    files = TlsFiles(*authority.issue("server"), authority.file)
    for tls, context in ((None, None), (files, authority.client("scheduler"))):
        with answering("127.0.0.1:0", _Asked(_state()).extender.routes, tls) as port:
            kept = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            if context is not None:
                kept = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
            silent = []
            for number in range(2 * MOST_CONNECTIONS):
                silent.append(socket.create_connection(("127.0.0.1", port), timeout=30))
                silent[-1].sendall(
                    b"POST /preempt HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"[: number % 60]
                )
                if number % 50 == 0:
                    kept.request("POST", "/preempt", _question())
                    assert kept.getresponse().read()
                    assert _post(port, "/preempt", _question(), context=context)[0] == 200
            assert kept.sock is not None, "it was closed, and opened again"
            kept.close()
            for connection in silent:
                connection.close()


def test_many_questions_at_once_are_all_answered(port: int) -> None:
    """Forty connections, one question each."""
    connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(40)]
    body = _question()
    head = f"POST /preempt HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    for connection in connections:
        connection.sendall(head.encode() + body)
    for connection in connections:
        with connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


class _Authority:
    """Certificates as files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.file = directory / "ca.crt"
        self.ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        leaf = self.ca.issue_cert("127.0.0.1", common_name=name)
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(key)
        return certificate, key

    def client(self, name: str = "") -> ssl.SSLContext:
        """What trusts the authority, with a client certificate if it has a name."""
        context = ssl.create_default_context(cafile=self.file)
        if name:
            certificate, key = self.issue(name)
            context.load_cert_chain(certificate, key)
        return context


def test_tls_asks_for_a_client_certificate_and_reads_a_new_one(tmp_path: Path) -> None:
    """Only who has a certificate of the authority may ask; a renewed certificate is served without a restart."""
    authority = _Authority(tmp_path)
    certificate, key = authority.issue("server")
    known = authority.client("scheduler")
    tls = TlsFiles(certificate, key, authority.file)
    with answering("127.0.0.1:0", _Asked(_state()).extender.routes, tls) as port:
        assert _post(port, "/preempt", _question(), context=known)[0] == 200
        with pytest.raises((ssl.SSLError, OSError)):
            _post(port, "/preempt", _question(), context=authority.client())
        with pytest.raises(OSError):
            _post(port, "/preempt", _question())
        before = _serial(port, known)
        authority.issue("server")
        assert _serial(port, known) != before
        certificate.write_text("nothing")
        assert _post(port, "/preempt", _question(), context=known)[0] == 200


def _serial(port: int, context: ssl.SSLContext) -> Any:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        found = secure.getpeercert()
        assert found is not None
        return found["serialNumber"]


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """At start, with what is wrong."""
    authority = _Authority(tmp_path)
    certificate, key = authority.issue("server")
    with pytest.raises(ConfigurationError, match=r"absent\.crt.*cannot be read: No such file"):
        TlsFiles(tmp_path / "absent.crt", key, None)
    with pytest.raises(ConfigurationError, match="no usable certificate and key"):
        TlsFiles(key, certificate, None)
    with pytest.raises(ConfigurationError, match="no usable certificate"):
        TlsFiles(certificate, key, key)
    with (
        pytest.raises(ConfigurationError, match=r"--extender-listen.*write HOST:PORT"),
        answering("x", {}, None),
    ):
        pass


# --- With a cluster


SMALL = {"nodeSelector": {"pool": "small"}, "gpus": 2}


def _small_world(world: World, *more: str) -> dict[str, str]:
    """A full node with an idle and a busy pod of 2 GPUs each, and more such; the pods' UIDs by name."""
    names = ("idle", "busy", *more)
    world.node("small", resources={GPU: 2 * len(names)}, pool="small")
    for name in names:
        world.add("Pod", world.team, name, SMALL)
    return {name: _pod(world, name).metadata.uid for name in names}


def _pod(world: World, name: str) -> PodObject:
    (found,) = world.pods_of(world.team, name)
    return msgspec.json.decode(json.dumps(found), type=PodObject)


def _candidates(world: World, *names: str) -> list[Preemptible]:
    found = []
    for name in names:
        bound = bound_pod(_pod(world, name), ResourceTable())
        assert bound is not None
        assert bound.gpu_pod is not None
        found.append(Preemptible(decision_of(workload(bound.gpu_pod)), (bound.gpu_pod,)))
    return found


@pytest.mark.prometheus
def test_state_follows_the_cluster_and_answers_until_the_plan_is_too_old(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watched pods, nodes and budgets; the plan's candidates; and no answer from an old plan."""
    monkeypatch.setattr(watched, "SHORTEST_PAUSE_S", 0.05)
    monkeypatch.setattr(watched, "LENGTH_S", 1.0)
    uids = _small_world(world)
    offered = {"small": Victims((uids["busy"],))}
    with _state(world, oldest_s=600.0) as state:
        assert state.victims(_urgent("first"), offered) is None
        _planned(state, _candidates(world, "idle"))
        wait_until(lambda: not state.stale_reason())
        choice = state.victims(_urgent("first"), offered)
        assert choice is not None
        assert (choice.answer, choice.victims) == (Answer.REPLACED, {"small": Victims((uids["idle"],))})
        again = state.victims(_urgent("first"), offered)
        assert again is not None
        assert (again.answer, again.victims, again.named) == (Answer.REPEATED, choice.victims, ())
        # What the first one was promised is not free for a second one.
        second = state.victims(_urgent("second"), offered)
        assert second is not None
        assert second.answer is Answer.UNCHANGED
        assert state.scores(_urgent("first"), ["small"]) == [7]
        world.api.delete("Pod", world.team, "idle")
        wait_until(lambda: state.scores(_urgent("first"), ["small"]) == [5])
        after = state.victims(_urgent("first"), offered)
        assert after is not None
        assert (after.answer, after.victims) == (Answer.REPEATED, offered)
        world.add("Pod", world.team, "late", SMALL)  # seen also after watches have ended and begun again
        wait_until(lambda: state.scores(_urgent("first"), ["small"]) == [10])
        _planned(state, (), began_at=time.monotonic() - 601)
        assert state.victims(_urgent("third"), offered) is None
        assert "more than two cycles" in state.stale_reason()


@pytest.mark.prometheus
def test_state_keeps_no_room_for_pods_that_are_never_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was deleted before the answer: another gets the victim."""
    uids = _small_world(world)
    offered = {"small": Victims((uids["busy"],))}
    with _state(world, oldest_s=600.0) as state:
        _planned(state, _candidates(world, "idle"))
        wait_until(lambda: not state.stale_reason())
        answers = []
        for name in ("made-up", "second", "third"):
            choice = state.victims(_urgent(name), offered)
            assert choice is not None
            answers.append(choice.answer)
            if name == "second":
                monkeypatch.setattr(preemption_state, "_NOMINATED_S", 0.0)
        assert answers == [Answer.REPLACED, Answer.UNCHANGED, Answer.REPLACED]


@pytest.mark.prometheus
def test_state_names_nobody_where_changes_are_paused_since_the_plan(world: World) -> None:
    """And answers nothing while that cannot be read."""
    uids = _small_world(world)
    offered = {"small": Victims((uids["busy"],))}
    now = datetime.datetime.now(datetime.UTC)
    with _state(world, oldest_s=600.0) as state:
        _planned(state, _candidates(world, "idle"))
        wait_until(lambda: not state.stale_reason())
        found = []
        for number, namespace in enumerate(("research", "", "another")):
            state.controlled(with_pause(NOTHING, Pause(now, "incident", namespace)))
            choice = state.victims(_urgent(f"u{number}"), offered)
            assert choice is not None
            found.append(choice.answer)
        assert found == [Answer.UNCHANGED, Answer.UNCHANGED, Answer.REPLACED]
        state.controlled(None)
        assert state.stale_reason() == "breaker and pauses cannot be read"
        assert state.victims(_urgent("last"), offered) is None
        state.controlled(NOTHING)
        assert not state.stale_reason()


def _charged(world: World) -> str:
    """The charges that a plan reads after a restart."""
    with contextlib.closing(Cluster(ClusterSettings(world.write_kubeconfig()))) as cluster:
        return read_charges(cluster, OWN)


def _answer(state: PreemptionState, name: str, uid: str) -> Answer | None:
    """The answer for an urgent pod, for which the scheduler would take another."""
    wait_until(lambda: not state.stale_reason())
    choice = state.victims(_urgent(name), {"small": Victims((uid,))})
    return choice.answer if choice else None


@pytest.mark.prometheus
def test_state_charges_what_it_names_so_that_a_restart_forgets_no_budget(world: World) -> None:
    """The plan of the next process allows no second stop within the hour, and an hour later it does."""
    uids = _small_world(world)
    candidates = _candidates(world, "idle")
    hourly = policy(rule("r"), budgets=[Budget(per=Per.HOUR, workloads=1)])
    with _state(world, oldest_s=600.0) as state:
        _planned(state, candidates)
        assert _answer(state, "first", uids["busy"]) is Answer.REPLACED
    charges = parse_charges(_charged(world))
    assert list(charges) == [uids["idle"]]
    other = decision_of(workload(pod("other"), kind="Job", spec=b"{}"))

    def allowed(after: datetime.timedelta) -> int:
        plan = Plan(_now() + after, "run", "", "", (other,), fleet=Fleet((other.workload,), {}, {}))
        return len(candidates_of(plan, hourly, own=OWN, instance="i", named=charges.values()))

    assert (allowed(datetime.timedelta()), allowed(datetime.timedelta(hours=1))) == (0, 1)


@pytest.mark.prometheus
def test_state_names_nobody_by_a_plan_that_lacks_charges(world: World) -> None:
    """Of a naming while it was made, or by another process; the next plan knows of them."""
    uids = _small_world(world, "second")
    candidates = _candidates(world, "idle", "second")
    with _state(world, oldest_s=600.0) as state, _state(world, oldest_s=600.0) as other:
        _planned(state, candidates)
        _planned(other, candidates)
        assert _answer(state, "first", uids["busy"]) is Answer.REPLACED
        assert _answer(other, "second", uids["busy"]) is Answer.UNKNOWN
        world.api.delete("Pod", world.team, "idle")  # by kube-scheduler
        _planned(state, candidates)
        wait_until(lambda: _answer(state, "third", uids["busy"]) is Answer.UNKNOWN)
        _planned(state, candidates, _charged(world))
        assert _answer(state, "third", uids["busy"]) is Answer.REPLACED


@pytest.mark.prometheus
@pytest.mark.parametrize(("is_applied", "next_answer"), [(False, Answer.REPLACED), (True, Answer.UNKNOWN)])
def test_state_that_cannot_charge_names_nobody(
    world: World, *, is_applied: bool, next_answer: Answer
) -> None:
    """If the reply is lost, it may have been charged: only the next plan knows."""
    uids = _small_world(world)
    with _state(world, oldest_s=600.0) as state:
        _planned(state, _candidates(world, "idle"))
        fault = Fault("configmaps", "POST", status=500, after_effect=is_applied)
        world.api.inject(fault)
        answers = [_answer(state, name, uids["busy"]) for name in ("first", "first")]
        assert answers == [Answer.UNKNOWN, next_answer]


@pytest.mark.prometheus
def test_charges_of_a_day_are_kept(world: World) -> None:
    """Older ones are in no budget; edited ones end the plan, with words on what to do."""
    uids = _small_world(world, "third")
    settings, hours = ClusterSettings(world.write_kubeconfig()), iter((0, 23, 25))
    charges = VictimCharges(
        lambda: Cluster(settings), OWN, lambda: _now() + next(hours) * datetime.timedelta(hours=1)
    )
    found = []
    for name in uids:
        assert charges.charge(_candidates(world, name))
        found.append(set(parse_charges(_charged(world))))
    assert found == [{uids["idle"]}, {uids["idle"], uids["busy"]}, {uids["busy"], uids["third"]}]
    with pytest.raises(ConfigurationError, match=r"-named: named\.json cannot be read.*; delete it"):
        parse_charges("[]")


class _Breaks(PreemptionState):
    """A state with a bug that one pod brings out."""

    def put_pod(self, pod: PodObject) -> None:
        if pod.metadata.name.startswith("breaks"):
            message = "a bug"
            raise ValueError(message)
        super().put_pod(pod)


@pytest.mark.prometheus
def test_state_whose_watch_fails_answers_nothing_until_it_follows_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for an unforeseen reason may it answer from pods that it no longer follows."""
    monkeypatch.setattr(watched, "SHORTEST_PAUSE_S", 0.05)
    _small_world(world)
    settings = ClusterSettings(world.write_kubeconfig())
    charges = VictimCharges(lambda: Cluster(settings), OWN, _now)
    with _Breaks(lambda: Cluster(settings), ResourceTable(), 600.0, charges) as state:
        _planned(state, ())
        wait_until(lambda: not state.stale_reason())
        world.add("Pod", world.team, "breaks", SMALL)
        wait_until(lambda: state.stale_reason() == "/api/v1/pods is not watched")
        world.api.delete("Pod", world.team, "breaks")
        wait_until(lambda: not state.stale_reason())


def _urgent(name: str) -> Preemptor:
    requests = {"pods": 1, GPU: 2}
    return Preemptor(f"uid-{name}", "research", name, 100_000, requests, is_plain=True)
