"""`gpu-rightsizer breaker`, `pause` and `resume`: show, reset and stop all changes."""

from rightsizer.cli.connection import cluster_settings, span_of
from rightsizer.cli.flags import BreakerOptions, PauseOptions, ResumeOptions
from rightsizer.cli.plan_session import program_version, utc_now
from rightsizer.cli.reporter import show
from rightsizer.errors import ConfigurationError, RequestRefused, UsageError
from rightsizer.execute.control_state import ControlStateStore
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.cluster import Cluster
from rightsizer.planning.breaker import (
    Pause,
    State,
    accepted,
    accepted_scope,
    closed,
    scope_of,
    with_pause,
    without_pause,
)
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.policy_file import load
from rightsizer.report.outcomes import state_document, state_text

_LONGEST_REASON = 500


def run(arguments: BreakerOptions | PauseOptions | ResumeOptions) -> int:
    """One of the commands."""
    cluster = Cluster(cluster_settings(arguments))
    store = ControlStateStore(cluster, arguments.state_namespace)
    match arguments:
        case PauseOptions():
            state = _pause(arguments, cluster, store)
        case ResumeOptions():
            state = _resume(arguments, store)
        case BreakerOptions(action="reset"):
            state = _reset(arguments, store)
        case BreakerOptions(action="accept-growth"):
            state = _accept(arguments, cluster, store)
        case BreakerOptions():
            state = store.read()
    at = utc_now()
    show(arguments, state_text(state, at), state_document(state, at), cluster=cluster.name)
    return 0


def _reason(arguments: BreakerOptions | PauseOptions) -> str:
    reason = " ".join(arguments.reason.split())
    if not reason:
        raise UsageError("--reason: is empty; say why, for other operators")
    if len(reason) > _LONGEST_REASON:
        raise UsageError(f"--reason: is longer than {_LONGEST_REASON} characters")
    return reason


def _reset(arguments: BreakerOptions, store: ControlStateStore) -> State:
    reason = _reason(arguments)
    return store.change(
        lambda state: State(closed(state.latch, utc_now(), reason), state.pauses, state.scope)
    )


def _accept(arguments: BreakerOptions, cluster: Cluster, store: ControlStateStore) -> State:
    if not arguments.policy:
        raise UsageError("breaker accept-growth needs --policy: whose rules are to be accepted?")
    loaded = load(arguments.policy)
    own = arguments.state_namespace
    queues = loaded.policy.queues
    fleet = build_fleet(read_cluster(cluster, RECORDABLE_KINDS, state_namespace=own, queues=queues))
    evaluator = PolicyEvaluator(loaded.policy, fleet, at=utc_now(), own=own)
    now = scope_of(evaluator, loaded.digest, program_version())
    scope = accepted_scope(now, utc_now())
    return store.change(lambda state: accepted(state, scope))


def _pause(arguments: PauseOptions, cluster: Cluster, store: ControlStateStore) -> State:
    reason, at = _reason(arguments), utc_now()
    until = None
    if arguments.span:
        span = span_of("--for", arguments.span)
        if not span:
            raise UsageError("--for 0: would end at once; omit it to pause until resume")
        until = (at + span).replace(microsecond=0)
    namespace = arguments.namespace or ""
    if namespace:
        _require_namespace(cluster, namespace)
    pause = Pause(at.replace(microsecond=0), reason, namespace, until)
    return store.change(lambda state: with_pause(state, pause))


def _require_namespace(cluster: Cluster, name: str) -> None:
    """A slip in its name would pause nothing, silently."""
    try:
        cluster.get_object(f"/api/v1/namespaces/{name}")
    except RequestRefused as refused:
        raise ConfigurationError(f'--namespace "{name}": {refused.detail}') from refused


def _resume(arguments: ResumeOptions, store: ControlStateStore) -> State:
    namespace = arguments.namespace or ""
    before = store.read()
    if not any(pause.namespace == namespace for pause in before.pauses):
        paused = ", ".join(pause.namespace or "the whole cluster" for pause in before.pauses) or "nothing"
        raise UsageError(f"{namespace or 'the whole cluster'} is not paused; paused: {paused}")
    return store.change(lambda state: without_pause(state, namespace))
