"""One workload of a plan as every form of it tells it: judgement, place, price. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence

from rightsizer.model import Confidence, Decision, Finding, Node, Plan, Verdict
from rightsizer.prices import Prices
from rightsizer.text import block_words, wanted_words


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A decision with what the fleet and the prices add to it.

    Attributes:
        nodes: Names of the nodes that its pods are on.
        model: Models of its GPUs; empty where no label says so.
        pool: Node pools; empty where no label says so.
        cost_per_hour: Price of what it holds; None where that of one pod is not known.
    """

    decision: Decision
    nodes: tuple[str, ...]
    model: str
    pool: str
    cost_per_hour: float | None

    @property
    def finding(self) -> Finding:
        """The one that decides."""
        return self.decision.finding

    @property
    def action(self) -> str:
        """What would be or is to be done; empty where nothing."""
        return self.decision.action.value if self.decision.action else ""

    @property
    def frees(self) -> float:
        """GPUs that would be free; 0 where nothing is to be done."""
        return self.decision.frees if self.decision.verdict is Verdict.ACT else 0.0

    @property
    def confidence(self) -> str:
        """Where it is not what one would expect; empty otherwise."""
        return "" if self.finding.confidence is Confidence.MEDIUM else self.finding.confidence.value

    @property
    def advice(self) -> str:
        """What would do better than we; empty where nothing would."""
        return advice_on(self.decision, "below")

    @property
    def proposal(self) -> str:
        """What is proposed, where its evidence does not say so already; empty where nothing is."""
        return proposal_words(self.finding, self.finding.words)

    @property
    def hindrances(self) -> tuple[str, ...]:
        """Everything that stands against acting, and against acting now, in words."""
        vetoes = (veto.message for veto in self.decision.restrictions)
        return (*vetoes, *map(block_words, self.decision.blockers), *wanted_words(self.decision))


def proposal_words(finding: Finding, told: Sequence[str]) -> str:
    """What a finding proposes; empty where nothing, or where what is told of its evidence says so already."""
    proposed = finding.proposal.words if finding.proposal else ""
    return "" if proposed in told else proposed


def advice_on(decision: Decision, where: str) -> str:
    """What would do better than we about a workload, and where its manifests are; empty where nothing would."""
    if decision.autoscalers is None:
        return ""
    lowest, highest = decision.autoscalers.lowest, decision.autoscalers.highest
    return (
        f"its need of replicas varies: an autoscaler from {lowest} to {highest} would follow it; manifests for KEDA "
        f"and for an HPA are {where}"
    )


def rows_of(plan: Plan, prices: Prices) -> tuple[Row, ...]:
    """Every workload of the plan once, in its order."""
    nodes = plan.fleet.nodes if plan.fleet else {}
    return tuple(_row(decision, nodes, prices) for decision in plan.decisions)


def _row(decision: Decision, nodes: Mapping[str, Node], prices: Prices) -> Row:
    pods = [pod for pod in decision.workload.pods if pod.holds]
    there = {pod.node: nodes.get(pod.node) for pod in pods}
    known = [node for node in there.values() if node]
    costs = [prices.of_pod(pod, there[pod.node]) for pod in pods]
    return Row(
        decision=decision,
        nodes=tuple(sorted(there)),
        model=", ".join(sorted({node.model for node in known if node.model})),
        pool=", ".join(sorted({node.pool for node in known if node.pool})),
        cost_per_hour=None if None in costs or not costs else sum(cost for cost in costs if cost is not None),
    )
