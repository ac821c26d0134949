"""What must hold of everything that is sent to the API server, whoever sends it and whatever happens meanwhile.

Reads a recording, the policy's plain mapping and the truth about the GPUs; a violation is a sentence. What it demands
is docs/safety.md: form of each request, whom it may be about, when, how much, and that it can be taken back.
"""

import collections
import dataclasses
import datetime
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube import ApiServer
from tests.rightsizer.wire.amounts import asked, holding, unequal
from tests.rightsizer.wire.form import (
    FIELDS,
    UNDO,
    containers_of,
    differing,
    is_amount,
    is_note,
    objections,
    value_at,
)
from tests.rightsizer.wire.law import (
    OURS,
    against,
    annotations_of,
    instant,
    pods_of,
    rule_on,
    seconds,
    starts_of,
)
from tests.rightsizer.wire.less import freed, key_of, out_of_room, since_of, too_little
from tests.rightsizer.wire.recorder import Entry, Object
from tests.rightsizer.wire.records import as_recorded, foreign, kept, recorded, run_of
from tests.rightsizer.wire.truth import Truth

_MONTH = datetime.timedelta(days=30)
_WEEK_S = 7 * 86400.0
_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Take:
    """Something that was taken from a workload; `gpus` that others can have since."""

    at: datetime.datetime
    run: str
    namespace: str
    name: str
    kind: str
    uid: str
    gpus: float
    what: str


class Checker:
    """Checks each request as it is carried out.

    Attributes:
        takes: What was taken, in order.
        counts: How often something happened, by what.
        violations: What must not have happened.
        persons: Users that are people, who may do more.
        readers: Users that may change nothing at all.
        forged: Objects whose owner writes records of changes on them, by namespace and name: what follows from these
            is not checked.
    """

    def __init__(self, policy: Mapping[str, Any], truth: Truth, api: ApiServer) -> None:
        self.policy = policy
        self.truth = truth
        self._api = api
        self.takes: list[Take] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.violations: list[str] = []
        self.persons: set[str] = set()
        self.readers: set[str] = set()
        self.forged: set[tuple[str, str]] = set()
        self.changed_since: set[str] = set()
        self.where = ""
        self._ends: dict[str, list[datetime.datetime]] = collections.defaultdict(list)
        self._before: dict[str, Object] = {}
        self._notices: dict[str, datetime.datetime] = {}
        self._dry: dict[str, str] = {}

    # --- what others do

    def reverted(self, uid: str, at: datetime.datetime) -> None:
        """Somebody took back what was done to an object."""
        self._ends[uid].append(at)
        self.changed_since.add(uid)

    # --- what we do

    def hear(self, entry: Entry) -> None:
        """Check a request that was just carried out, or refused.

        The server answers 500 to an error in here, which the program survives: it is a violation.
        """
        if (entry.namespace, entry.name) in self.forged:
            return
        try:
            self._check(entry)
        except Exception as error:
            self.violations.append(f"{self.where}: {error!r}: {entry}")
            raise

    def _check(self, entry: Entry) -> None:
        self.counts["requests that may change something"] += 1
        found = [*objections(entry, is_person=entry.user in self.persons)]
        if entry.user in self.readers:
            found.append("who only plans changes nothing")
        if entry.kind != "Lease" and entry.user not in self.persons:
            found += self._leads(entry)
        if entry.is_dry:
            self._dry[entry.path] = entry.text if entry.is_done else ""
        elif entry.is_done:
            found += self._effect(entry)
        self.violations += [f"{self.where}: {one}: {entry}" for one in found]

    def _leads(self, entry: Entry) -> Iterator[str]:
        lease = entry.scene.lease
        if lease.get("holderIdentity") != entry.user:
            yield f"{lease.get('holderIdentity') or 'nobody'} holds the Lease"

    def _effect(self, entry: Entry) -> Iterator[str]:
        """What must hold of a request that changed something."""
        if entry.kind == "Pod" and entry.subresource == "eviction":
            yield from self._taken(entry, "evict", math.inf)
        elif entry.method == "PATCH" and entry.kind not in {"ConfigMap", "Pod"}:
            yield from self._changed(entry)
        elif entry.method == "PATCH" and entry.kind == "Pod" and OURS + "notice" in entry.text:
            yield from self._noticed(entry)
        elif entry.method == "POST" and entry.kind == "Pod":
            self.counts["restored"] += 1

    def _changed(self, entry: Entry) -> Iterator[str]:
        before, after = entry.scene.obj, entry.after
        if before is None or after is None:
            yield "changes what is not there"
            return
        uid, kind = before["metadata"]["uid"], entry.kind.partition(".")[0]
        paths = differing(before, after)
        changed = [path for path in paths if path in FIELDS[kind] or is_amount(path, kind)]
        if stray := [path for path in paths if path not in changed and not is_note(path)]:
            yield f"changes {stray}"
        record = annotations_of(after).get(UNDO)
        if not changed:
            yield from self._noted(entry, uid)
        elif _is_finished(before, changed):
            yield from self._finished(before, after, changed)
        elif all(_gives(before, after, path) for path in changed):
            self.counts["given back"] += 1
            yield from as_recorded(before, after, changed)
            if record is None:
                yield from self._restored(after, uid)
                if OURS + "resumed-at" in entry.text:
                    self._ends[uid].append(entry.at)
        elif record and json.loads(record).get("pendingEnd"):
            self.counts["stopped to be given back"] += 1
        else:
            self._before.setdefault(uid, before)
            yield from recorded(before, after, record, changed)
            if self._dry.get(entry.path) != entry.text:
                yield "was not tried before by a dry run of the very same"
            yield from self._taken(entry, *_what(after, record, changed))

    def _finished(self, before: Object, after: Object, changed: list[tuple[str, ...]]) -> Iterator[str]:
        """What was stopped to be changed goes on, with what the record said would come next."""
        self.counts["finished"] += 1
        record = json.loads(annotations_of(before)[UNDO])
        to_come = {tuple(edit["path"]): edit.get("after") for edit in record.get("pendingEdits", ())}
        stop = {tuple(edit["path"]): edit.get("before") for edit in record["edits"]}
        for path in changed:
            if value_at(after, path) not in {to_come.get(path), stop.get(path)}:
                yield f"goes on with {path}: {value_at(after, path)}, which nobody announced"
        yield from unequal(containers_of(after))

    def _noted(self, entry: Entry, uid: str) -> Iterator[str]:
        if OURS + "notice" in entry.text and '"notice":null' not in entry.text.replace(" ", ""):
            yield from self._noticed(entry)
            return
        self.counts["noted"] += 1
        if UNDO not in annotations_of(entry.after):
            self._before.pop(uid, None)
            self.changed_since.discard(uid)

    def _noticed(self, entry: Entry) -> Iterator[str]:
        assert entry.scene.obj is not None
        self.counts["notices"] += 1
        self._notices[entry.scene.obj["metadata"]["uid"]] = entry.at
        yield from against(entry.scene, self.policy, entry.at, part=_part(entry), left=math.inf)
        yield from self._held(entry)

    def _restored(self, after: Object, uid: str) -> Iterator[str]:
        """Exactly what was there, unless someone changed it besides."""
        original = self._before.pop(uid, None)
        if original is None or uid in self.changed_since:
            self.changed_since.discard(uid)
            return
        if after["spec"] != original["spec"] or foreign(after) != foreign(original):
            yield f"is not as it was: {after['spec']} {foreign(after)}, it was {original['spec']} {foreign(original)}"

    # --- what is taken

    def _taken(self, entry: Entry, what: str, left: float) -> Iterator[str]:
        workload = entry.scene.obj
        if workload is None:
            yield "takes from what is not there"
            return
        pods, part = pods_of(entry.scene), _part(entry)
        rules = [rule for pod in pods if (rule := rule_on(pod, workload, self.policy))]
        yield from against(entry.scene, self.policy, entry.at, part=part, left=left)
        yield from self._held(entry)
        if what == "less":
            yield from too_little(entry, pods, [rule[part] for rule in rules], self.truth)
            yield from out_of_room(entry, pods, self._api)
        else:
            yield from self._at_work(entry, pods, rules, left)
        if what == "evict":
            yield from kept(entry)
        gpus = freed(entry, pods, what, left)
        meta = workload["metadata"]
        take = Take(
            entry.at,
            run_of(entry),
            meta["namespace"],
            meta["name"],
            workload["kind"],
            meta["uid"],
            gpus,
            what,
        )
        yield from self._too_soon(take, rules, pods, part)
        if what != "less":
            yield from self._too_many_replicas_gone(left, pods, rules, what)
        self.takes.append(take)
        self.counts[f"{what} {workload['kind']}"] += 1
        yield from self._over_budget(take)

    def _held(self, entry: Entry) -> Iterator[str]:
        """Pauses and breaker, as they stand on the server."""
        state = entry.scene.state
        for pause in json.loads(state.get("pauses.json", "[]")):
            until = pause.get("until")
            if pause.get("namespace", "") in {"", entry.namespace} and not (
                until and instant(until) <= entry.at
            ):
                yield "while paused"
        if json.loads(state.get("breaker.json", "{}")).get("trip"):
            yield "while the breaker is open"

    def _at_work(
        self, entry: Entry, pods: list[Object], rules: list[Mapping[str, Any]], left: float
    ) -> Iterator[str]:
        key = key_of(entry)
        if key in self.truth.lies:
            yield f"the metrics were {self.truth.lies[key]}"
        span = max((seconds(rule["idle"]["window"]) for rule in rules), default=0.0)
        if 0 < left < math.inf:
            span = 3600.0
        since = since_of(entry, pods, span)
        busiest = self.truth.busiest(key, since, self.truth.told)
        if busiest > (left if left < math.inf else 0):
            yield f"{busiest} of its pods were at work since {since}"

    def _too_many_replicas_gone(
        self, left: float, pods: list[Object], rules: list[Mapping[str, Any]], what: str
    ) -> Iterator[str]:
        for rule in rules:
            kept = rule.get("minReplicas", 0)
            if (0 if what == "evict" else left) < kept:
                yield f"rule {rule['name']} keeps {kept} of {len(pods)} replicas"

    def _too_soon(
        self, take: Take, rules: list[Mapping[str, Any]], pods: list[Object], part: str
    ) -> Iterator[str]:
        """Once in a cooldown, longer after each time that someone took one back; never by what it did before the last.

        Three times a month at most. Replicas follow demand: what nobody took back does not count, and
        needs no notice.
        """
        each = [one for one in self.takes if one.uid == take.uid]
        ends = self._ends[take.uid]
        nexts = [*(one.at for one in each[1:]), take.at]
        earlier = [
            one
            for one, after in zip(each, nexts, strict=False)
            if one.what != "shrink" or any(one.at <= end < after for end in ends)
        ]
        cooldown = max((seconds(rule.get("cooldown", "24h")) for rule in rules), default=0.0)
        window = max((seconds(rule[part]["window"]) for rule in rules), default=0.0)
        lived = [take.at - start for start in starts_of(pods)]
        evidence = min(window, max(lived).total_seconds()) if lived else window
        if earlier and (take.at - earlier[-1].at).total_seconds() < cooldown:
            yield f"so soon after {earlier[-1]}"
        if each and part != "tooManyReplicas" and (take.at - each[-1].at).total_seconds() < evidence:
            yield f"by what it did before {each[-1]}"
        if len([one for one in earlier if take.at - one.at < _MONTH]) >= 2:
            yield "a third time in a month"
        ends = [end for end in ends if take.at - end < _MONTH]
        if ends:
            held_s = min(cooldown * 2 ** (len(ends) - 1), max(_WEEK_S, cooldown))
            if (take.at - ends[-1]).total_seconds() < held_s:
                yield f"it was taken back {len(ends)} times, the last at {ends[-1]}, and is held off for {held_s} s"
        waits = max((seconds(rule.get("notifyBefore", "0m")) for rule in rules), default=0.0)
        notice = self._notices.get(take.uid)
        if (
            part != "tooManyReplicas"
            and waits
            and (notice is None or (take.at - notice).total_seconds() < waits)
        ):
            yield f"its people were told {notice}, {waits} s before are wanted"

    def _over_budget(self, take: Take) -> Iterator[str]:
        for budget in self.policy["budgets"]:
            alike = [one for one in self.takes if self._counts_with(one, take, budget)]
            gpus = sum(one.gpus for one in alike)
            if (
                len(alike) > budget.get("workloads", math.inf)
                or gpus > budget.get("gpus", math.inf) + _EPSILON
            ):
                yield f"over budget {budget}: {[(one.name, one.gpus, f'{one.at:%H:%M}') for one in alike]}"

    def _counts_with(self, one: Take, take: Take, budget: Mapping[str, Any]) -> bool:
        scope, per = budget.get("scope", "cluster"), budget.get("per", "run")
        is_near = {
            "cluster": True,
            "namespace": one.namespace == take.namespace,
            "owner": (one.kind, one.namespace, one.name) == (take.kind, take.namespace, take.name),
        }[scope]
        if per == "run":
            return is_near and one.run == take.run
        span = datetime.timedelta(hours={"hour": 1, "day": 24}[per])
        return is_near and take.at - one.at < span


def _part(entry: Entry) -> str:
    """By which part of a rule it was judged, as it says itself."""
    return next((part for name, part in _PARTS.items() if f'\\"{name}\\"' in entry.text), "idle")


_PARTS = {
    "too-many-replicas": "tooManyReplicas",
    "too-many-gpus": "tooManyGpus",
    "oversized-gpu": "oversizedGpu",
}


def _gives(before: Object, after: Object, path: tuple[str, ...]) -> bool:
    """Whether a field goes back to letting more run; of a template, whether its pods hold more of a GPU."""
    if is_amount(path, str(after["kind"])):
        held = [holding(asked(containers_of(obj))).weight for obj in (before, after)]
        return held[1] > held[0]
    was, now = value_at(before, path), value_at(after, path)
    if isinstance(was, int) and not isinstance(was, bool) and isinstance(now, int):
        return now > was
    stopped = {True: True, "true": True}
    return bool(was) and not stopped.get(now, False) and now in {None, False, "false", ""}


def _is_finished(before: Object, changed: list[tuple[str, ...]]) -> bool:
    """Whether the object waited to be changed, and is."""
    record = json.loads(annotations_of(before).get(UNDO, "{}"))
    return bool(record.get("pendingEdits")) and any(is_amount(path, str(before["kind"])) for path in changed)


def _what(after: Object, record: str | None, changed: list[tuple[str, ...]]) -> tuple[str, float]:
    """What a change comes to, and how many pods it leaves; of what pods hold less of, all of them."""
    kind = str(after["kind"])
    if any(is_amount(path, kind) for path in changed) or (record and json.loads(record).get("pendingEdits")):
        return "less", math.inf
    size = value_at(after, FIELDS[kind][0])
    left = size if isinstance(size, int) and not isinstance(size, bool) else 0
    return ("shrink" if left else "stop"), left
