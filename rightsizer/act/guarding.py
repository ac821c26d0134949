"""What stands against mending what an earlier run left: protections, opt-outs and the open breaker.

A record on an object says what to restore, and whoever may annotate the object can write one. So what no run may
change is not mended either; it is told.
"""

import dataclasses
from collections.abc import Iterator

from rightsizer.act.session import Means
from rightsizer.act.settling import Found
from rightsizer.act.state import Gate
from rightsizer.look import look_at
from rightsizer.model import Fleet, Mending, Mode, Veto, Workload
from rightsizer.observe.objects import Metadata
from rightsizer.policy.document import Policy
from rightsizer.policy.protections import opt_outs, protections
from rightsizer.policy.rules import Rulebook


@dataclasses.dataclass(frozen=True, slots=True)
class Guard:
    """Asked before each repair.

    Attributes:
        gate: The breaker is asked; pauses keep nothing from being put back.
    """

    policy: Policy
    gate: Gate

    def against(self, found: Found, mending: Mending, means: Means) -> str:
        """Why an object is left as it is; empty where it may be mended.

        Raises:
            ClusterError: It could not be found out.
        """
        is_open = self.gate.trip() if mending is Mending.PUT_BACK else ""
        if is_open:
            return f"the breaker is open, and nothing is put back before a person has closed it: {is_open}"
        vetoes = self._vetoes(found, means)
        if mending is Mending.FINISH:  # who opted out meanwhile did not ask to be left half-way
            vetoes = [veto for veto in vetoes if veto.rule != "opt-out"]
        return "; ".join(veto.reason for veto in vetoes)

    def _vetoes(self, found: Found, means: Means) -> list[Veto]:
        fresh, fleet = look_at(found.about, means.cluster)
        if fresh is not None:
            return list(self._by_rules(fresh, fleet, means))
        # No pods, by which rules are sought: what holds for the object and its namespace.
        path = f"/api/v1/namespaces/{found.ref.namespace}"
        bare = _without_pods(found, means.cluster.get(path, Metadata).metadata.annotations or {})
        wishes = opt_outs(bare, means.clock()) if self.policy.honourOptOut else ()
        shields = protections(bare, self.policy, means.state_namespace)
        return [*shields, *(wish.veto for wish in wishes if wish.mode is Mode.PROTECT)]

    def _by_rules(self, fresh: Workload, fleet: Fleet, means: Means) -> Iterator[Veto]:
        book = Rulebook(
            self.policy, fleet, at=means.clock(), own=means.state_namespace, instance=means.instance
        )
        ruling = book.on(fresh)
        if ruling.mode is Mode.PROTECT:
            yield from ruling.vetoes


def _without_pods(found: Found, namespace_annotations: dict[str, str]) -> Workload:
    metadata = found.obj["metadata"]
    return Workload(
        ref=found.ref,
        generation=0,
        resource_version="",
        pods=(),
        size=None,
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        namespace_annotations=namespace_annotations,
        budgets={},
    )
