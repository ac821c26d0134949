"""The approved changes of a saved plan, read from its document. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from rightsizer.errors import ConfigurationError
from rightsizer.model import ClusterName, Decision, ObjectRef
from rightsizer.model.offers import Asks
from rightsizer.report.documents import API_VERSION
from rightsizer.yamlfile import AliasFreeLoader


@dataclasses.dataclass(frozen=True, slots=True)
class Approval:
    """The parts of a change in a reviewed plan that must still be the same."""

    ref: ObjectRef
    generation: int
    action: str | None
    pods: Mapping[str, str]
    to: tuple[int | Asks | None, ...] = ()

    @classmethod
    def of(cls, decision: Decision) -> "Approval":
        """The approval that this decision would need."""
        workload = decision.workload
        action = decision.action.value if decision.action else None
        pods = {pod.ref.name: pod.ref.uid for pod in workload.pods}
        proposal = decision.finding.proposal
        to = (proposal.replicas, proposal.gpus_per_pod, proposal.asks) if proposal else ()
        return cls(workload.ref, workload.generation, action, pods, to)


# Errors of YAML, of a document of another shape, and of values of other types.
_NO_PLAN = (
    yaml.YAMLError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    msgspec.ValidationError,
)


@dataclasses.dataclass(frozen=True, slots=True)
class SavedPlan:
    """The enforced changes of a plan document, and the cluster that it says it is of; None if it does not say."""

    approvals: tuple[Approval, ...]
    cluster: ClusterName | None = None


def read_saved_plan(text: str, *, source: str) -> SavedPlan:
    """The enforced changes of a plan document, JSON or YAML.

    Raises:
        ConfigurationError: It is no plan of gpu-rightsizer, or a hypothetical one.
    """
    try:
        document = AliasFreeLoader(text).get_single_data()
        if (document["apiVersion"], document["kind"]) != (API_VERSION, "Plan"):
            raise ConfigurationError(
                f"plan file {source}: is of kind {document['kind']} ({document['apiVersion']}), "
                f"not of kind Plan ({API_VERSION})"
            )
        if document.get("hypothetical"):
            raise ConfigurationError(
                f"plan file {source}: is hypothetical and cannot be applied: {document['hypothetical']}; "
                "make one of the live cluster, as of now"
            )
        approvals = {
            _ref(item): _approval(item)
            for item in document["items"]
            if (item["verdict"], item["mode"]) == ("act", "enforce")
            and item["action"]
            and not item["blockers"]
        }
        cluster = _cluster(document["metadata"].get("cluster"))
    except _NO_PLAN as error:
        words = "it is not a plan; make one with: gpu-rightsizer plan -o json"
        raise ConfigurationError(f"plan file {source}: cannot be read: {words}") from error
    return SavedPlan(tuple(approvals.values()), cluster)


def _cluster(written: object) -> ClusterName | None:
    found = msgspec.convert(written, dict[str, Any] | None) or {}
    context, server, is_inside = (found.get(name) for name in ("context", "server", "inCluster"))
    return ClusterName(str(context or ""), str(server), is_inside is True) if server else None


def _approval(item: Mapping[str, Any]) -> Approval:
    pods = msgspec.convert(item["pods"], dict[str, str])
    proposal = msgspec.convert(item["proposal"], dict[str, Any] | None)
    to = (proposal["replicas"], proposal["gpusPerPod"], _asks(proposal["requests"])) if proposal else ()
    return Approval(_ref(item), msgspec.convert(item["generation"], int), str(item["action"]), pods, to)


def _asks(written: object) -> Asks:
    return tuple((msgspec.convert(written, dict[str, int] | None) or {}).items())


def _ref(item: Mapping[str, Any]) -> ObjectRef:
    fields = ("apiVersion", "kind", "namespace", "name", "uid")
    return ObjectRef(*(msgspec.convert(item[field], str) for field in fields))
