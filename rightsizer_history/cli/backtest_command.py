"""`gpu-rightsizer backtest`: what policies would have done over the recorded history.

It only reads, except that --publish replaces one ConfigMap.
"""

import dataclasses
import datetime
import logging
import pathlib
import random
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rightsizer import prices
from rightsizer.cli.connection import (
    cluster_settings,
    span_of,
)
from rightsizer.cli.messages import note, progress
from rightsizer.cli.reporter import require_writable, save
from rightsizer.errors import RightsizerError, UsageError
from rightsizer.execute.notify import notify_of_all_namespaces
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.last_backtest import LastBacktest, LastBacktestStore, PolicyFigures
from rightsizer.model import Fleet, Mode, Node
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.policy_file import BUILT_IN, LoadedPolicy, load
from rightsizer.policy.schema import Policy, Target
from rightsizer.text import count, instant, safe, span
from rightsizer_history.backtest.judges import Judge, Nothing, Oracle, PlainRule, PolicyJudge
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.replay import Replayed, Terms
from rightsizer_history.backtest.standings import workload_of
from rightsizer_history.backtest.summary import Summary, summarize
from rightsizer_history.cli import BacktestOptions, ReplayOptions
from rightsizer_history.cli.recorded_history import matched_labels, record
from rightsizer_history.cli.replays import replays
from rightsizer_history.report import BACKTEST_ENDINGS, BACKTEST_FORMS, form
from rightsizer_history.report.backtest import Backtest
from rightsizer_history.report.backtest_messages import backtest_message, backtest_webhook_message

log = logging.getLogger(__name__)

SEED = 1
"""Seed of the samples that intervals are from: the same history gives the same bytes."""
WARM_UP = 3
"""The first third of the record only teaches: no window fits into less."""
LEAST_UNSEEN = 0.001
"""A smaller share of GPU-hours without samples is not shown."""
SHORT = datetime.timedelta(days=14)
"""A record with one weekend does not tell a weekend from the end."""
PLAIN = {
    "idle 30m": datetime.timedelta(minutes=30),
    "idle 4h": datetime.timedelta(hours=4),
    "idle 24h": datetime.timedelta(hours=24),
    "idle 72h": datetime.timedelta(hours=72),
}
"""Rules that policies are compared with: they stop whatever was idle for a time."""
LEAST_STEP = datetime.timedelta(minutes=5)
LONGEST_STEP = datetime.timedelta(hours=1)
"""Histories of the findings have slots of an hour."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """Question to a history, from the flags."""

    span: datetime.timedelta
    step: datetime.timedelta
    every: datetime.timedelta
    restart: datetime.timedelta


def run(arguments: BacktestOptions) -> int:
    """Read the history, replay it under each judge, print, and hand the result on."""
    asked = question_of(arguments)
    saved_form = _form_of(arguments.save)
    require_writable(arguments.save)
    store = _store(arguments)
    loaded = [load(pathlib.Path(path)) for path in arguments.policies] or [BUILT_IN]
    policies = list(_policies(loaded, enforce=arguments.enforce))
    table = prices.load(arguments.prices)
    with progress():
        recording = record(arguments, asked.span, asked.step, [policy for _, policy in policies])
    if recording is None:
        return 0
    terms = Terms(asked.every, first_cycle(recording, WARM_UP), asked.restart)
    results = list(replays(recording, list(judges_of(policies, asked)), terms))
    result = result_of(recording, terms, results, dict(policies), table, is_enforced=arguments.enforce)
    sys.stdout.write(form(arguments.output, BACKTEST_FORMS)(result))
    problems = []
    if saved_form:
        problems += _problem(lambda: save(arguments.save, [form(saved_form, BACKTEST_FORMS)(result)]))
    if arguments.notify:
        saved = None if problems else arguments.save
        problems += _notify(loaded[0].policy, arguments.cluster_name or "", result, saved)
    if store:
        last = _last(result, recording, terms)
        problems += [f"--publish: {problem}" for problem in _problem(lambda: store.write(last))]
    for problem in problems:
        log.warning("%s", problem)
    return 1 if problems else 0


def _form_of(path: pathlib.Path | None) -> str | None:
    """The form of the file of --save, by its ending.

    Raises:
        UsageError: It has none.
    """
    if path is None:
        return None
    ending = path.suffix
    if ending not in BACKTEST_ENDINGS:
        raise UsageError(f'--save "{path}": must end in one of {", ".join(BACKTEST_ENDINGS)}')
    return BACKTEST_ENDINGS[ending]


def _store(arguments: BacktestOptions) -> LastBacktestStore | None:
    """Store of --publish. Made before the history is read, so that an unusable kubeconfig fails at once."""
    if not arguments.publish:
        return None
    return LastBacktestStore(Cluster(cluster_settings(arguments)), arguments.state_namespace)


def _problem(step: Callable[[], None]) -> list[str]:
    """Take a step; why it failed, if it did: the steps after it are taken all the same."""
    try:
        step()
    except RightsizerError as error:
        return [str(error)]
    return []


def _last(result: Backtest, recording: Recording, terms: Terms) -> LastBacktest:
    """The figures that --publish keeps."""
    grid = recording.grid
    figures = (
        PolicyFigures(
            summary.judge,
            summary.freed.value,
            summary.saved.value if summary.saved else None,
            summary.stops.value,
            summary.returned.value,
        )
        for summary in result.judged
    )
    return LastBacktest(grid.end, (grid.steps - terms.first) * grid.step_s / 3600, tuple(figures))


def _notify(policy: Policy, cluster: str, result: Backtest, path: pathlib.Path | None) -> list[str]:
    """Send the figures; the report is a file of this machine, or what this machine printed."""
    host = socket.gethostname()
    place = f"{path} of {host}" if path else f"output of {host}"
    if not policy.notifications:
        note("the policy has no notifications, so --notify sends nothing")
    return notify_of_backtest(policy.notifications, cluster, result, place)


def notify_of_backtest(targets: Sequence[Target], cluster: str, result: Backtest, place: str) -> list[str]:
    """Send the figures of a backtest, whose report is at `place`; return the failures.

    `cluster` is empty if its name is not known.
    """
    return notify_of_all_namespaces(
        targets,
        "backtest",
        lambda chat: backtest_message(chat, cluster, result, place),
        backtest_webhook_message(cluster, result, place),
    )


def question_of(arguments: ReplayOptions) -> Question:
    """Read the question from the flags.

    Raises:
        UsageError: One of them is invalid.
    """
    length, step, every, restart = (
        span_of("--from", arguments.since),
        span_of("--step", arguments.step),
        span_of("--every", arguments.every),
        span_of("--restart-cost", arguments.restart_cost),
    )
    if not LEAST_STEP <= step <= LONGEST_STEP:
        raise UsageError(f'--step "{arguments.step}": write 5m to 1h')
    if every < step or every % step:
        raise UsageError(f'--every "{arguments.every}": write a multiple of --step ({arguments.step})')
    if length < WARM_UP * every:
        raise UsageError(f'--from "{arguments.since}": is shorter than {WARM_UP} cycles of {arguments.every}')
    return Question(length, step, every, restart)


def _policies(loaded: Sequence[LoadedPolicy], *, enforce: bool) -> Iterator[tuple[str, Policy]]:
    names = [name_of(policy) for policy in loaded]
    taken = {*PLAIN, Nothing().name, Oracle().name}
    sources = [policy.source for policy in loaded]
    for name, given in zip(names, loaded, strict=True):
        if sources.count(given.source) > 1:
            raise UsageError(f"--policy {given.source}: is given twice")
        policy = enforced(given.policy) if enforce else given.policy
        yield given.source if names.count(name) > 1 or name in taken else name, policy


def judges_of(policies: Sequence[tuple[str, Policy]], asked: Question) -> Iterator[Judge]:
    """The policies, and what they are compared with."""
    yield Nothing()
    yield from (PlainRule(name, window) for name, window in PLAIN.items() if window < asked.span)
    for name, policy in policies:
        yield PolicyJudge(name, policy)
    yield Oracle()


def name_of(loaded: LoadedPolicy) -> str:
    """Name of a policy in tables."""
    return "built-in policy" if loaded is BUILT_IN else pathlib.PurePath(loaded.source).name


def enforced(policy: Policy) -> Policy:
    """The policy as if its rules that advise enforced."""
    rules = tuple(
        rule.model_copy(update={"mode": Mode.ENFORCE}) if rule.mode is Mode.ADVISE else rule
        for rule in policy.rules
    )
    return policy.model_copy(update={"rules": rules})


def first_cycle(recording: Recording, parts: int) -> int:
    """The step of the first cycle: one of `parts` equal parts of the record only teaches."""
    return recording.first + (recording.grid.steps - recording.first) // parts


def _unknown(recording: Recording, terms: Terms, policies: Iterable[Policy], held: Summary) -> Iterator[str]:
    grid, first = recording.grid, recording.first
    if first > 1:
        yield f"anything before {instant(grid.time(first))}, when the record begins"
    recorded = grid.end - grid.time(first)
    if recorded < SHORT:
        yield f"weekends, and pauses of more than {span(recorded)}: the record is no longer, so few returns show"
    learned = grid.time(terms.first) - grid.time(first)
    remembered = max(map(_longest_history, policies), default=datetime.timedelta())
    if learned < remembered:
        yield (
            f"pauses of more than {span(learned)} before the first cycle: a plan looks back {span(remembered)}, so it "
            "would stop less"
        )
    if held.held and held.unseen / held.held >= LEAST_UNSEEN:
        yield (
            f"what {100 * held.unseen / held.held:.1f} % of the held GPU-hours were used for, which have no samples: "
            "they count neither as used nor as freed"
        )
    guessed = sum(group.is_guessed for group in recording.groups)
    if guessed:
        yield (
            f"owners and PriorityClasses of {guessed} of {len(recording.groups)} workloads, which kube-state-metrics "
            "does not tell: their kinds are guessed from the names of their pods"
        )
    members = (member for group in recording.groups for member in group.members)
    if missing := sorted(matched_labels(policies) - {key for member in members for key in member.labels}):
        yield (
            f"{'label' if len(missing) == 1 else 'labels'} {', '.join(map(safe, missing))}, which kube-state-metrics "
            "tells of no pod (--metric-labels-allowlist): rules that match by it match nothing"
        )
    if recording.unchecked:
        yield (
            f"the provenance of GPU series in {count(recording.unchecked, 'day')}, where every scraped target counts: "
            "the cluster would tell exporters apart (--kubeconfig, --context), best with --exporter-namespace"
        )
    if not recording.has_counters:
        yield f"bursts between two scrapes: {recording.source} has no counters of busy time"
    yield "work since the last checkpoint of what is stopped: a return costs its restart only"
    yield (
        "annotations, PodDisruptionBudgets, other controllers, pending pods and requests to inference servers of then; "
        "answers to notices; how people would have worked otherwise"
    )


def _longest_history(policy: Policy) -> datetime.timedelta:
    by_kind, by_rule = (row.idle for row in policy.defaults.kinds), (rule.idle for rule in policy.rules)
    return max(idle.history for idle in (policy.defaults.idle, *by_kind, *by_rule) if idle)


def _remarks(recording: Recording, policy: Policy, *, is_enforced: bool) -> Iterator[str]:
    advising = sum(rule.mode is Mode.ADVISE for rule in policy.rules)
    if advising and not is_enforced:
        yield f"{count(advising, 'rule')} with mode: advise changed nothing: --enforce asks what they would do"
    evaluator = PolicyEvaluator(policy, Fleet((), recording.nodes, {}), at=recording.grid.begin)
    matched = {
        rule.name
        for group in recording.groups
        for rule in evaluator.evaluate(workload_of(group, recording)).rules
    }
    if unused := [safe(rule.name) for rule in policy.rules if rule.name not in matched]:
        words = f"no recorded workload is under {'rule' if len(unused) == 1 else 'rules'} {', '.join(unused)}"
        has_classes = any(group.priority_class for group in recording.groups)
        yield words if has_classes else f"{words}: the record has no PriorityClasses"


def result_of(
    recording: Recording,
    terms: Terms,
    results: Sequence[Replayed],
    policies: Mapping[str, Policy],
    table: prices.Prices,
    *,
    is_enforced: bool,
) -> Backtest:
    """The sums of all judges."""
    grid = recording.grid

    def price_of(model: str) -> float | None:
        return table.of_node(Node("", model))

    summaries = [summarize(result, random.Random(SEED), price_of) for result in results]  # noqa: S311 - samples
    models = {group.model for group in recording.groups}
    sources = {str(found[1]) for model in models if (found := table.find(Node("", model))) is not None}
    return Backtest(
        begin=grid.time(terms.first),
        end=grid.end,
        learned=grid.time(terms.first) - grid.time(recording.first),
        step=datetime.timedelta(seconds=grid.step_s),
        every=terms.every,
        restart=terms.restart,
        is_enforced=is_enforced,
        source=recording.source,
        workloads=len(recording.groups),
        gpus=recording.most_gpus,
        summaries=summaries,
        policies=frozenset(policies),
        rules=[result.judge for result in results if result.judge in PLAIN],
        unknown=list(_unknown(recording, terms, policies.values(), summaries[0])),
        remarks={
            name: list(_remarks(recording, policy, is_enforced=is_enforced))
            for name, policy in policies.items()
        },
        currency=table.currency,
        prices=sorted(sources),
    )
