"""All queries of a plan, in rounds: usage of every pod first, follow-up queries for some workloads later.

Follow-up queries read days of samples, so they are sent only for workloads that the earlier rounds would change.
"""

import dataclasses
import datetime
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rightsizer.config import format_duration
from rightsizer.findings import second_signals
from rightsizer.findings.data_quality import is_settled
from rightsizer.findings.evidence import names_of
from rightsizer.findings.followup_queries import (
    ConcurrencyRequest,
    HistoryRequest,
    followup_queries,
    last_queries,
    short_window_queries,
)
from rightsizer.findings.idle_history import longest_pauses, pauses_by_kind
from rightsizer.findings.replicas import counted_window
from rightsizer.findings.second_signals import Movements, device_key
from rightsizer.findings.stuck import IdlePower, board_levels, by_boards, is_dark
from rightsizer.model import (
    Boards,
    Concurrency,
    Device,
    Fleet,
    History,
    Measured,
    PodKey,
    ServingLoads,
    Slot,
    Usage,
    Usages,
    Whereabouts,
    WorkLevel,
    Workload,
    strongest,
)
from rightsizer.planning.gpus_in_reach import (
    InReach,
    as_long,
    gpus_in_reach,
    nodes_of,
    wanted,
    with_reach,
    with_reach_histories,
)
from rightsizer.planning.usage_signal import Signal
from rightsizer.policy.effective import Criteria, PolicyEvaluator
from rightsizer.text import GIB
from rightsizer.usage.active_replicas import ReplicaQuery

log = logging.getLogger(__name__)

_UNSEEN = bytes.maketrans(bytes([Slot.BUSY]), bytes([Slot.UNKNOWN]))
"""A board that works may work for any pod on it."""

_FEW = 0.5
"""Share of the pods below which it is cheaper to name them in queries than to read all series."""

_FULL = (0.95, 2.0)
"""Times the retention that a full record is long: its begin is known to about a hundredth, and blocks are kept for some
time more. A longer one is in another store (remote read), whose retention is unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Alike:
    """Measurements of the fleet's workloads that help to judge others like them.

    Attributes:
        pauses: Full kind, namespace and longest pause of each, in seconds.
    """

    pauses: tuple[tuple[str, str, float], ...] = ()
    idle_power: IdlePower = dataclasses.field(default_factory=IdlePower)
    movements: Movements = dataclasses.field(default_factory=dict)

    def joined(self, other: "Alike") -> "Alike":
        """Add the measurements of another part of the fleet."""
        moved = second_signals.joined(self.movements, other.movements)
        return Alike(self.pauses + other.pauses, self.idle_power.joined(other.idle_power), moved)


def measure(
    fleet: Fleet,
    signal: Signal,
    evaluator: PolicyEvaluator,
    at: datetime.datetime,
    windows: Collection[datetime.timedelta] = (),
    joined: Callable[[Alike], Alike] = lambda own: own,
) -> Measured:
    """Send all rounds of queries, over these windows for the whole fleet; by default over those that it is judged by.

    `joined` adds what the other parts tell, where `fleet` is only a part of one. It is called twice: follow-up queries
    need to know which gauges are signals, and pauses are only known after these.

    Raises:
        PrometheusError: An answer was incomplete.
    """
    held = [pod for workload in fleet.workloads for pod in workload.pods if pod.holds]
    pods = {(pod.ref.namespace, pod.ref.name): pod.node for pod in held}
    settled = {(pod.ref.namespace, pod.ref.name) for pod in held if is_settled(pod, at)}
    signal.expect(pods.keys(), settled, Whereabouts(pods, fleet.addresses))
    # The longest window first: what is cached for it serves the others.
    judged = dict.fromkeys(windows, pods.keys()) if windows else _wide_windows(fleet, evaluator)
    windows = sorted(judged, reverse=True)
    few = {window for window in windows[1:] if len(judged[window]) <= _FEW * len(pods)}
    usages = {
        window: _usages(signal, window, at, of=judged[window] if window in few else None)
        for window in windows
    }
    shared = {(pod.ref.namespace, pod.ref.name) for pod in held if pod.is_shared and pod.usable > 1}
    shares = signal.shares(shared, at) if shared else {}
    first = _with_boards(signal, Measured(at, usages, nodes=signal.nodes(at), shares=shares), pods, evaluator)
    reach = gpus_in_reach(fleet, first)
    usages = {window: _with_reach(signal, found, reach, window, at) for window, found in first.usages.items()}
    first = dataclasses.replace(first, usages=usages)
    moved = joined(Alike(movements=_movements(signal, first, pods, evaluator))).movements
    silent = second_signals.silent_signals(moved)
    usages = {window: second_signals.without_silent(found, silent) for window, found in usages.items()}
    first = dataclasses.replace(first, usages=usages, silent=silent)
    more = followup_queries(fleet, first, _criteria_of(evaluator))
    candidates = frozenset(pod for request in more.histories for pod in request.pods)
    usages |= {
        window: with_samples(usages[window], signal.sampled(window, at, of=candidates)) for window in windows
    }
    histories = _histories(signal, more.histories, at)
    for request in more.histories:
        some = wanted(reach, request.pods)
        nodes, threshold = nodes_of(some), request.percent / 100
        rows = signal.device_histories(nodes, request.span, at, threshold=threshold) if nodes else {}
        histories |= with_reach_histories({pod: histories[pod] for pod in some}, rows, some)
    if first.board_levels:
        nodes = _nodes_of_boards(first, pods)
        histories = _with_board_histories(signal, more.histories, histories, first, nodes)
    begins = _begins(signal, more.histories, at)
    second = dataclasses.replace(
        first,
        usages=usages,
        serving=_serving(signal, evaluator, at, pods=pods.keys(), candidates=candidates),
        waits=signal.waits(pods.keys(), _starving(evaluator), at) if more.waits else {},
        histories=histories,
        concurrency=_concurrency(signal, more.concurrency, fleet, at),
        begins=begins,
        is_full=begins is not None and _is_full(at - begins, signal.retention()),
        series=signal.series(at) if more.concurrency else None,
    )
    widest = usages[max(usages)] if usages else {}
    alike = joined(Alike((*longest_pauses(fleet.workloads, histories, at),), IdlePower.of(widest)))
    last = _short_windows(signal, fleet, second, at, evaluator)
    for window in sorted(last, reverse=True):
        found = _usages(signal, window, at, of=last[window])
        closer = _with_reach(signal, found, wanted(reach, last[window]), window, at)
        usages[window] = {**usages.get(window, {}), **second_signals.without_silent(closer, silent)}
    third = dataclasses.replace(
        second,
        usages=usages,
        idle_power=alike.idle_power.lowest,
        pauses_s=pauses_by_kind(alike.pauses),
    )
    spinning, resized = last_queries(fleet, third, _criteria_of(evaluator))
    work = _work(signal, spinning, at)
    nodes = _nodes_of_boards(third, {pod: pods[pod] for pod in resized})
    nvlink = signal.nvlink(nodes, at) if nodes else {}
    return dataclasses.replace(third, work=work, nvlink=nvlink, ignored=signal.ignored(at))


def _movements(
    signal: Signal, measured: Measured, pods: Mapping[PodKey, str], evaluator: PolicyEvaluator
) -> Movements:
    """Movements of gauges in the windows; in the whole record where these leave open which of them are signals."""
    windows = [itertools.chain.from_iterable(found.values()) for found in measured.usages.values()]
    found = second_signals.joined(*map(second_signals.movements, windows))
    widest = measured.usages[max(measured.usages)] if measured.usages else {}
    idle = [criteria.idle for criteria in evaluator.all_criteria()]
    used = [usage for pod in pods.keys() & widest.keys() for usage in widest[pod]]
    present = {usage.device.model for usage in used}
    has_power = {model: all(limits.idle_power_w(model) for limits in idle) for model in present}
    models = {
        usage.device.model
        for usage in used
        if (movement := found.get(device_key(usage)))
        and movement.is_open(has_idle_power=has_power[usage.device.model])
    }
    if not models:
        return found
    span = max(limits.history for limits in idle)
    log.info(
        "movement of gauges of %s in %s", ", ".join(sorted(models)), format_duration(span.total_seconds())
    )
    boards = signal.boards(span, measured.at, nodes=_nodes_of_boards(measured, pods), models=models)
    return second_signals.joined(found, second_signals.movements(boards.values()))


def _short_windows(
    signal: Signal, fleet: Fleet, measured: Measured, at: datetime.datetime, evaluator: PolicyEvaluator
) -> Mapping[datetime.timedelta, Collection[PodKey]]:
    """Windows of some pods; each workload that may spin asks for the last minutes of all, which are read once."""
    recent = functools.cache(lambda: signal.recent(at))
    return short_window_queries(fleet, measured, recent, _criteria_of(evaluator))


def _serving(
    signal: Signal,
    evaluator: PolicyEvaluator,
    at: datetime.datetime,
    *,
    pods: Collection[PodKey],
    candidates: Collection[PodKey],
) -> dict[datetime.timedelta, ServingLoads]:
    """The load of inference servers in these pods, over each window in which requests matter.

    Of the windows of idleness only that of `candidates`, whose GPUs may be idle.
    """
    every = evaluator.all_criteria()
    wide = {window for rule in every for window in (rule.noRequests.window, rule.tooManyReplicas.window)}
    found = {window: signal.serving(pods, window, at) for window in sorted(wide)}
    narrow = {window for rule in every for window in (rule.idle.window, rule.idle.short_window)} - wide
    if candidates:
        found |= {window: signal.serving(candidates, window, at) for window in sorted(narrow)}
    return found


def activity_with_boards(
    signal: Signal,
    window: datetime.timedelta,
    at: datetime.datetime,
    *,
    plan: tuple[Measured, Fleet],
    with_coverage: bool = False,
) -> Usages:
    """Peak activity, also of the devices that the plan judged by their boards: unknown unless these are still idle."""
    measured, fleet = plan
    activity = signal.activity(window, at, with_coverage=with_coverage)
    found = dict(_with_reach(signal, activity, gpus_in_reach(fleet, measured), window, at))
    dark = _judged_by_boards(measured)
    if not dark:
        return found
    for pod, devices in dark.items():
        lit = {usage.device for usage in found.get(pod, ())}
        found[pod] = (*found.get(pod, ()), *(Usage(device) for device in sorted(devices - lit)))
    pods = {(pod.ref.namespace, pod.ref.name): pod.node for owner in fleet.workloads for pod in owner.pods}
    nodes = _nodes_of_boards(measured, pods)
    boards = signal.boards(window, at, nodes=nodes, models=measured.board_levels.keys())
    return by_boards(found, _known(boards, nodes), measured.board_levels)


def _with_reach(
    signal: Signal, usages: Usages, reach: InReach, window: datetime.timedelta, at: datetime.datetime
) -> Usages:
    return with_reach(usages, signal.devices(window, at, nodes=nodes_of(reach)), reach) if reach else usages


def _with_boards(
    signal: Signal, measured: Measured, pods: Mapping[PodKey, str], evaluator: PolicyEvaluator
) -> Measured:
    """Judge devices without activity of their own, as MIG instances before Hopper, by their boards."""
    widest = measured.usages[max(measured.usages)] if measured.usages else {}
    models = {
        usage.device.model
        for pod in pods.keys() & widest.keys()
        for usage in widest[pod]
        if is_dark(usage) and usage.device.model
    }
    if not models:
        return measured
    nodes, idle = _nodes_of_boards(measured, pods), [criteria.idle for criteria in evaluator.all_criteria()]
    log.info("boards of %s", ", ".join(sorted(models)))
    boards = {span: signal.boards(span, measured.at, nodes=nodes, models=models) for span in measured.usages}
    levels = board_levels(
        widest,
        boards[max(boards)],
        percent=min(limits.maxBoardPowerPercent for limits in idle),
        empty_bytes=min(limits.maxEmptyMemoryMiB for limits in idle) * GIB / 1024,
    )
    usages = {
        window: by_boards(measured.usages[window], _known(found, nodes), levels)
        for window, found in boards.items()
    }
    return dataclasses.replace(measured, usages=usages, board_levels=levels)


def _nodes_of_boards(measured: Measured, pods: Mapping[PodKey, str]) -> dict[str, str]:
    """The node of each board that pods use; none of a board that series of several nodes name."""
    found: dict[str, set[str]] = {}
    for usages in measured.usages.values():
        for pod in pods.keys() & usages.keys():
            for usage in usages[pod]:
                found.setdefault(usage.device.uuid, set()).add(pods[pod])
    return {uuid: min(nodes) for uuid, nodes in found.items() if len(nodes) == 1}


def _known(boards: Boards, nodes: Mapping[str, str]) -> Boards:
    return {uuid: board for uuid, board in boards.items() if uuid in nodes}


def _judged_by_boards(measured: Measured) -> dict[PodKey, set[Device]]:
    found: dict[PodKey, set[Device]] = {}
    for usages in measured.usages.values():
        for pod, known in usages.items():
            if devices := {usage.device for usage in known if usage.is_by_board}:
                found.setdefault(pod, set()).update(devices)
    return found


def _with_board_histories(
    signal: Signal,
    requests: Iterable[HistoryRequest],
    histories: Mapping[PodKey, History],
    measured: Measured,
    nodes: Mapping[str, str],
) -> dict[PodKey, History]:
    """Add the histories of pods that are judged by boards: idle while these were, else unknown."""
    found, dark = dict(histories), _judged_by_boards(measured)
    for request in requests:
        boards: dict[str, History] = {}
        pods = sorted(dark.keys() & request.pods.keys())
        for model, level in measured.board_levels.items():
            uuids = {device.uuid for pod in pods for device in dark[pod] if device.model == model}
            if uuids:
                wanted = {uuid: nodes[uuid] for uuid in sorted(uuids)}
                boards |= signal.board_histories(wanted, request.span, measured.at, level)
        for pod in pods:
            own = histories[pod]
            rows = [as_long(own, boards.get(device.uuid)).translate(_UNSEEN) for device in dark[pod]]
            has_others = any(
                not (usage.is_by_board or is_dark(usage))
                for usages in measured.usages.values()
                for usage in usages.get(pod, ())
            )
            found[pod] = dataclasses.replace(own, slots=strongest([*rows, own.slots] if has_others else rows))
    return found


def with_samples(usages: Usages, sampled: Usages) -> Usages:
    """Usage with the higher peaks of each device, as records never outvote samples, and with what signals lack."""
    found = dict(usages)
    for pod, others in sampled.items():
        known = {(usage.device.uuid, usage.device.instance): usage for usage in usages.get(pod, ())}
        for other in others:
            place = other.device.uuid, other.device.instance
            usage = known.setdefault(place, other)
            usage = known[place] = dataclasses.replace(
                usage,
                traffic_peak=_higher(usage.traffic_peak, other.traffic_peak),
                power_peak_w=_higher(usage.power_peak_w, other.power_peak_w),
                lacking=other.lacking,
            )
            if (
                not usage.is_own
            ):  # else counters separate the pods of the device, which the sampled gauge does not
                peaks = [peak for peak in (usage.activity_peak, other.activity_peak) if peak is not None]
                peak = max(peaks, default=None)
                invalid = tuple(sorted({*usage.invalid, *other.invalid}))
                known[place] = dataclasses.replace(usage, activity_peak=peak, invalid=invalid)
        found[pod] = tuple(known.values())
    return found


def _higher(known: float | None, sampled: float | None) -> float | None:
    """The higher peak of a second signal; None where it is none."""
    return None if known is None else max(known, sampled or 0.0)


def _criteria_of(evaluator: PolicyEvaluator) -> Callable[[Workload], Sequence[Criteria]]:
    return lambda workload: evaluator.evaluate(workload).judged_by


def _wide_windows(
    fleet: Fleet, evaluator: PolicyEvaluator
) -> Mapping[datetime.timedelta, Collection[PodKey]]:
    """The windows that are queried first, each with the pods that are judged by it; each costs a set of queries."""
    found: dict[datetime.timedelta, set[PodKey]] = {}
    for workload in fleet.workloads:
        held = [(pod.ref.namespace, pod.ref.name) for pod in workload.pods if pod.holds]
        for window in {span for rule in evaluator.evaluate(workload).judged_by for span in rule.wide_windows}:
            found.setdefault(window, set()).update(held)
    return found or dict.fromkeys(evaluator.windows(), ())


def _usages(
    signal: Signal, window: datetime.timedelta, at: datetime.datetime, of: Collection[PodKey] | None = None
) -> Usages:
    usages = signal.usages(window, at, of=of)
    devices = sum(map(len, usages.values()))
    span = format_duration(window.total_seconds())
    log.info("window %s: usage of %d devices by %d pods", span, devices, len(usages))
    return usages


def _starving(evaluator: PolicyEvaluator) -> datetime.timedelta:
    """Window of the wait metrics: the longest of any rule."""
    return max(criteria.inputBound.window for criteria in evaluator.all_criteria())


def _histories(
    signal: Signal, requests: Iterable[HistoryRequest], at: datetime.datetime
) -> dict[PodKey, History]:
    found: dict[PodKey, History] = {}
    for request in requests:
        length = format_duration(request.span.total_seconds())
        log.info("pauses of %d pods in %s", len(request.pods), length)
        pods = {key: began or at - request.span for key, began in request.pods.items()}
        found.update(signal.histories(pods, request.span, at, threshold=request.percent / 100))
    return found


def _work(
    signal: Signal, requests: Iterable[HistoryRequest], at: datetime.datetime
) -> dict[PodKey, WorkLevel]:
    found: dict[PodKey, WorkLevel] = {}
    for request in requests:
        log.info("power at work of %d pods", len(request.pods))
        pods = {key: began or at - request.span for key, began in request.pods.items()}
        found.update(signal.work_levels(pods, request.span, at, threshold=request.percent / 100))
    return found


def _begins(
    signal: Signal, requests: Iterable[HistoryRequest], at: datetime.datetime
) -> datetime.datetime | None:
    spans = [request.span for request in requests]
    return signal.begins(max(spans), at) if spans else None


def _is_full(record: datetime.timedelta, kept: datetime.timedelta | None) -> bool:
    return kept is not None and _FULL[0] * kept <= record <= _FULL[1] * kept


def _concurrency(
    signal: Signal, requests: Iterable[ConcurrencyRequest], fleet: Fleet, at: datetime.datetime
) -> dict[str, Concurrency]:
    # Whoever may create a pod can name the UID of another's object as its owner.
    read = {workload.ref.uid for workload in fleet.workloads if workload.resource_version}
    found: dict[str, Concurrency] = {}
    for request in requests:
        log.info("replicas of %d workloads, minute by minute", len(request.workloads))
        own = [owner for owner in request.workloads if owner.resource_version or owner.ref.uid not in read]
        found.update(signal.concurrency([_replicas(workload, request, at) for workload in own], at))
    return found


def _replicas(workload: Workload, request: ConcurrencyRequest, at: datetime.datetime) -> ReplicaQuery:
    criteria = request.criteria
    return ReplicaQuery(
        uid=workload.ref.uid,
        name=workload.ref.name,
        namespace=workload.ref.namespace,
        names=names_of(workload),
        pods={pod.ref.name: pod.started or pod.created or at for pod in workload.pods if pod.holds},
        window=counted_window(criteria),
        threshold=criteria.busyPercent / 100,
    )
