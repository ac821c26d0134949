"""Watches this node's pods on the API server: one list, then a watch, in its own thread.

Runs only if labels or UIDs are requested. Must not know devices. A failure costs labels, never series: it is logged
once and retried with backoff, and known pods are kept for a while.
"""

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from exporter.errors import ApiServerError, VersionExpiredError
from exporter.model import PodDetails
from exporter.pods.apihttp import PodApi
from exporter.pods.deviceids import DeviceKey
from exporter.pods.podfacts import Pod, PodFact, WantedPodFacts, pod_fact

_LOG = logging.getLogger(__name__)
_WATCH_S = 300  # then the server ends it, and the next one continues from there
_LONGEST_SILENCE_S = _WATCH_S * 1.5 + 15
_PAGE = "100"  # pods; a node has up to 110 by default
_MAX_PODS = 2000  # several times the pods of a large node: more cannot be this node's
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_STEADY_S = 10.0  # a watch that lasted this long is a success
_KEEP_S = 300.0  # the upgrade of a control plane may take this long
_JOIN_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class KnownPods:
    """Pods of this node, by namespace and name."""

    up: bool  # all pods are known and watched
    # whether a pod's containers have ended for good
    has_ended: Mapping[Pod, bool] = dataclasses.field(default_factory=dict)
    details: Mapping[Pod, PodDetails] = dataclasses.field(default_factory=dict)  # the requested details
    # pods by UID, or by the hash of a static pod
    names: Mapping[str, Pod] = dataclasses.field(default_factory=dict)
    # container names by the runtime's ids
    containers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # GPUs that a scheduler chose and wrote to the pod
    gpus: Mapping[Pod, tuple[DeviceKey, ...] | None] = dataclasses.field(default_factory=dict)


class PodWatch:
    """Watches the pods of one node from `start` to `close`."""

    def __init__(
        self, api: PodApi, wanted: WantedPodFacts, *, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        """Make no request yet.

        `clock`: monotonic seconds. `chance`: a random number from 0 up to 1, so that not all nodes query at once.
        """
        self._api = api
        self._wanted = wanted
        self._clock = clock
        self._chance = chance
        self._lock = threading.Lock()
        self._facts: dict[Pod, PodFact] = {}
        self._version: str | None = None  # None: everything must be listed
        # "0" is served from the API server's cache; "" after that was too old
        self._list_from = "0"
        self._up = False
        self._changed_at = clock()
        self._failed_in_a_row = 0
        self._logged = False
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pod-watch", daemon=True)

    def start(self, *, wait_s: float) -> None:
        """Start, and wait up to `wait_s` seconds for the first answer."""
        self._thread.start()
        self._first.wait(wait_s)

    def known(self) -> KnownPods:
        """The pods known now; never waits for the API server."""
        with self._lock:
            if not self._up and self._clock() - self._changed_at > _KEEP_S:
                self._facts = {}
            return KnownPods(
                up=self._up,
                has_ended={pod: fact.has_ended for pod, fact in self._facts.items()},
                details={pod: fact.details for pod, fact in self._facts.items()},
                gpus={pod: fact.gpus for pod, fact in self._facts.items()},
                names=_by_uid(self._facts),
                containers={
                    container_id: name
                    for fact in self._facts.values()
                    for container_id, name in fact.containers.items()
                },
            )

    def close(self) -> None:
        """End the watch."""
        self._stop.set()
        self._api.interrupt()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._version is None:
                    self._list()
                self._follow()
            except ApiServerError as error:
                self._pause(error)
            except Exception as error:  # noqa: BLE001 - the one broad catch of this loop: costs labels, not the thread
                _LOG.exception("watching this node's pods: a bug in gpu-exporter, please report it")
                self._version = None
                self._pause(ApiServerError(f"{type(error).__name__}: {error}"))

    def _list(self) -> None:
        """Replace all known pods by a fresh list."""
        found: dict[Pod, PodFact] = {}
        query = {"limit": _PAGE, "resourceVersion": self._list_from}
        more = True
        while more:
            document = self._api.get(query)
            for pod in _items(document):
                key, fact = pod_fact(pod, self._wanted)
                found[key] = fact
            _check(len(found))
            metadata = _metadata(document)
            more = bool(metadata.get("continue"))
            query = {"limit": _PAGE, "continue": str(metadata.get("continue"))}
        with self._lock:
            self._facts = found
            self._set_up(up=True)
        self._version = str(metadata.get("resourceVersion") or "")
        self._first.set()

    def _follow(self) -> None:
        """Apply changes until the server ends the watch."""
        began = self._clock()
        query = {
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(int(_WATCH_S * (1 + self._chance() / 2))),
        }
        try:
            for event in self._api.watch(query, timeout_s=_LONGEST_SILENCE_S):
                if event:
                    self._apply(event)
                    continue
                if self._logged:
                    _LOG.info("this node's pods are watched again")
                self._logged = False
                with self._lock:
                    self._set_up(up=True)
            if self._clock() - began < _SHORTEST_PAUSE_S:
                raise ApiServerError("the API server ended a watch immediately")
        finally:
            if self._clock() - began > _STEADY_S:
                self._failed_in_a_row = 0

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind, document = event.get("type"), event.get("object")
        if kind in ("ADDED", "MODIFIED", "DELETED"):  # no set: what is no text need not be hashable
            key, fact = pod_fact(document, self._wanted)
            with self._lock:
                before = self._facts.get(key)
                if kind != "DELETED":
                    self._facts[key] = fact
                elif before is not None and before.uid == fact.uid:
                    del self._facts[key]
            _check(len(self._facts))
        self._version = str(_metadata(document).get("resourceVersion") or self._version)
        self._failed_in_a_row = 0

    def _pause(self, error: ApiServerError) -> None:
        """Log the failure once, and wait."""
        if self._stop.is_set():
            return
        has_expired = isinstance(error, VersionExpiredError)
        if has_expired:
            self._version, self._list_from = None, ""
        if not (has_expired and self._failed_in_a_row == 0):  # an expired version is normal now and then
            with self._lock:
                self._set_up(up=False)
            if not self._logged:
                _LOG.warning(
                    "watching this node's pods: %s; retrying; GPU series continue, after a while without pod labels",
                    error,
                )
            self._logged = True
            self._first.set()
        pause_s = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(self._failed_in_a_row, 10))
        self._failed_in_a_row += 1
        wanted_s = min(error.retry_after_s, _LONGEST_PAUSE_S)
        self._stop.wait(max(pause_s * (1 + self._chance()) / 2, wanted_s))

    def _set_up(self, *, up: bool) -> None:
        if self._up is not up:
            self._up, self._changed_at = up, self._clock()


def _by_uid(facts: Mapping[Pod, PodFact]) -> dict[str, Pod]:
    """The pods by UID; by the hash of a configuration only if no other pod claims the same."""
    claims = collections.Counter(fact.config_hash for fact in facts.values() if fact.config_hash)
    hashes = {fact.config_hash: pod for pod, fact in facts.items() if claims[fact.config_hash] == 1}
    return {**hashes, **{fact.uid: pod for pod, fact in facts.items()}}


def _items(document: Mapping[str, Any]) -> list[Any]:
    items = document.get("items")
    return items if isinstance(items, list) else []


def _metadata(document: object) -> Mapping[str, Any]:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _check(count: int) -> None:
    if count > _MAX_PODS:
        raise VersionExpiredError(f"the API server sends more than {_MAX_PODS} pods for one node")
