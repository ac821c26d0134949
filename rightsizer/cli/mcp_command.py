"""`gpu-rightsizer mcp`: answers questions of AI assistants over the Model Context Protocol. Only reads.

https://modelcontextprotocol.io/specification/2026-07-28
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import pydantic

from rightsizer.cli.connection import cluster_settings, instant_of, prometheus_settings
from rightsizer.cli.flags import McpOptions
from rightsizer.cli.plan_session import PlanSession, policy_of, program_version, utc_now
from rightsizer.errors import ConfigurationError, RightsizerError
from rightsizer.execute.listing import list_changes, list_events, read_memory
from rightsizer.kube.cluster import Cluster
from rightsizer.model import FindingName, Verdict
from rightsizer.report.answers import (
    ABOUT_DATA,
    MOST,
    PricedPlan,
    changes_answer,
    fleet_answer,
    harmless,
    is_about,
    workload_answer,
    workloads_answer,
)
from rightsizer.report.selection import Selection, freed_words

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.tools import Tool
    from mcp_types import ToolAnnotations
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"mcp: the library {str(error.name).partition('.')[0]} is missing; run: pip install "
        "'gpu-rightsizer[mcp]', or in a checkout: pip install '.[mcp]'"
    ) from error

_FRESH_S = 60.0
"""How long a plan answers: a question is mostly one of several about the same state."""
_INSTRUCTIONS = f"""\
Answers who holds which GPUs of one Kubernetes cluster, who uses them, what they cost, what gpu-rightsizer would change
and why, and what it changed. All tools only read; changes are made by people with gpu-rightsizer apply and undo.
GPUs are whole GPUs, prices are per hour. null is unknown, never zero, and verdict unknown is never idle.
{ABOUT_DATA}"""
_READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
T = TypeVar("T")

_Patterns = Annotated[str, pydantic.Field(description="Name, also with *; empty: all.", max_length=300)]
_Names = Annotated[
    str, pydantic.Field(description="NAMESPACE/KIND/NAME, also with *; empty: all.", max_length=600)
]
_Name = Annotated[
    str, pydantic.Field(description="NAMESPACE/KIND/NAME, such as research/Deployment/eval", max_length=600)
]


def run(arguments: McpOptions) -> int:
    """Answer on standard input and output until the client closes them."""
    # What is invalid ends the program; what cannot be reached is the answer to a question.
    prometheus_settings(arguments)
    cluster_settings(arguments)
    policy_of(arguments)
    tools = _Tools(arguments)
    MCPServer(
        "gpu-rightsizer",
        title="GPUs of a Kubernetes cluster",
        instructions=_INSTRUCTIONS,
        version=program_version(),
        tools=[_strict(one) for one in (tools.fleet, tools.workloads, tools.explain, tools.history)],
        log_level="WARNING",
    ).run()
    return 0


def _strict(function: Callable[..., dict[str, Any]]) -> Tool:
    """A tool that refuses an argument it does not have: the SDK leaves a misspelled filter out."""
    tool = Tool.from_function(function, annotations=_READS)
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    return tool


@dataclasses.dataclass(slots=True)
class _Tools:
    """One method for each tool: its docstring and the types of its arguments are what the assistant reads."""

    _arguments: McpOptions
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    _priced: PricedPlan | None = None
    _made: float = 0.0

    def fleet(self) -> dict[str, Any]:
        """GPUs of the cluster: held, used, reclaimable and free, and what they cost, by class, namespace and model."""
        return self._about_plan(fleet_answer)

    def workloads(  # noqa: PLR0913, PLR0917 - what the assistant may ask by
        self,
        workload: _Names = "",
        namespace: _Patterns = "",
        priority_class: _Patterns = "",
        owner: _Patterns = "",
        verdict: Verdict | None = None,
        finding: FindingName | None = None,
        limit: Annotated[int, pydantic.Field(ge=1, le=MOST)] = 30,
    ) -> dict[str, Any]:
        """Workloads with GPUs, those with most first: what each holds and costs, verdict, finding and blockers.

        Idle ones: finding idle. What should change: verdict act; only then is `frees` the GPUs that it gives back.
        """
        selection = Selection(
            workloads=(workload,) if workload else (),
            namespaces=(namespace,) if namespace else (),
            classes=(priority_class,) if priority_class else (),
            owners=(owner,) if owner else (),
            verdicts=frozenset({verdict.value} if verdict else ()),
            findings=frozenset({finding.value} if finding else ()),
            text="a question",
        )
        return self._about_plan(lambda priced: workloads_answer(priced, selection, limit))

    def explain(self, workload: _Name) -> dict[str, Any]:
        """Why a workload has its verdict: measurements, coverage, policy rule, blockers, nodes and planned change."""
        answer = self._about_plan(
            lambda priced: workload_answer(priced, workload) or freed_words(priced.plan, workload)
        )
        if isinstance(answer, str):
            missing = f"{harmless(workload)}: no such workload holds or waits for GPUs"
            raise ToolError(harmless(answer) if answer else missing)
        return answer

    def history(
        self,
        workload: _Names = "",
        since: Annotated[str, pydantic.Field(description="RFC 3339, or a duration such as 7d.")] = "30d",
    ) -> dict[str, Any]:
        """What gpu-rightsizer changed, latest first: action, GPUs, run, and how it ended, such as undone or reverted.

        Where isKnown is false, only the object itself says so, and whoever may change the object may have written it.
        """
        with self._told():
            begin = instant_of("since", since, utc_now())
            cluster = Cluster(cluster_settings(self._arguments))
            with contextlib.closing(cluster):
                own = self._arguments.state_namespace
                found = [
                    one
                    for one in list_changes(cluster, own)
                    if one.at >= begin
                    and any(is_about(ref, workload) for ref in (one.ref, one.carrier) if ref)
                ]
                events = [
                    one for one in list_events(cluster) if one.at >= begin and is_about(one.ref, workload)
                ]
                return changes_answer(cluster.name, utc_now(), found, read_memory(cluster, own), events)

    def _about_plan(self, answer: Callable[[PricedPlan], T]) -> T:
        """An answer from a plan that is at most a minute old; several questions at once wait for one plan."""
        with self._told(), self._lock:
            if self._priced is None or time.monotonic() - self._made > _FRESH_S:
                self._priced, self._made = self._observed(), time.monotonic()
            return answer(self._priced)

    def _observed(self) -> PricedPlan:
        session = PlanSession(self._arguments)
        with contextlib.closing(session):
            plan = session.observe()
            return PricedPlan(plan, *session.account(plan))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tell the assistant why there is no answer; any other error is a bug, which the SDK logs."""
        try:
            yield
        except RightsizerError as error:
            raise ToolError(harmless(str(error))) from error
