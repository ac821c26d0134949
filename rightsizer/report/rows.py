"""A plan as every form shows it: one row for each workload, and small tables of totals. Pure."""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from rightsizer.config import format_duration
from rightsizer.model import (
    Action,
    Confidence,
    Decision,
    Finding,
    Node,
    NodeAutoscaler,
    ObjectRef,
    Plan,
    Stranded,
    Verdict,
)
from rightsizer.model.gpu_fractions import gpus_of_node
from rightsizer.planning.cost_summary import CostSummary, CostTotals
from rightsizer.planning.emptied_nodes import EmptiedNode, emptied_nodes
from rightsizer.prices import ALL_REGIONS, Prices, PriceSource
from rightsizer.report.terminal import Table
from rightsizer.text import (
    block_words,
    count,
    gpus_number,
    number,
    per_hour,
    per_hour_and_month,
    percent,
    short,
    wanted_words,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A decision with the nodes, GPU models, node pools (empty if no label names them) and the price of its workload.

    `cost_per_hour` is None if the price of one pod is unknown.
    """

    decision: Decision
    nodes: tuple[str, ...]
    model: str
    pool: str
    cost_per_hour: float | None

    @property
    def finding(self) -> Finding:
        """The finding that decides."""
        return self.decision.finding

    @property
    def action(self) -> str:
        """The action; empty if there is none."""
        return self.decision.action.value if self.decision.action else ""

    @property
    def frees(self) -> float:
        """GPUs that the action frees; 0 without an action."""
        return self.decision.frees if self.decision.verdict is Verdict.ACT else 0.0

    @property
    def confidence(self) -> str:
        """Low or high; empty if medium."""
        return "" if self.finding.confidence is Confidence.MEDIUM else self.finding.confidence.value

    @property
    def advice(self) -> str:
        """Advice to use an autoscaler; empty if there is none."""
        return advice_on(self.decision, "below")

    @property
    def proposal(self) -> str:
        """The proposal, unless its evidence says so already."""
        return proposal_words(self.finding, self.finding.words)

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Every blocker, permanent or temporary, in words."""
        restrictions = (blocker.message for blocker in self.decision.restrictions)
        return (*restrictions, *map(block_words, self.decision.blockers), *wanted_words(self.decision))


def proposal_words(finding: Finding, shown: Sequence[str]) -> str:
    """The proposal of a finding, unless the evidence that is shown says so already."""
    proposed = finding.proposal.words if finding.proposal else ""
    return "" if proposed in shown else proposed


def advice_on(decision: Decision, where: str) -> str:
    """Advice to use an autoscaler, and where its manifests are; empty if there is none."""
    if decision.autoscalers is None:
        return ""
    lowest, highest = decision.autoscalers.lowest, decision.autoscalers.highest
    varies = "the number of active replicas varies"
    if replaces := decision.autoscalers.replaces:
        return (
            f"{varies}: {replaces} would follow it with {lowest} to {highest} replicas and another query; "
            f"its manifest is {where}"
        )
    return (
        f"{varies}: an autoscaler from {lowest} to {highest} replicas would follow it; "
        f"manifests for KEDA and for an HPA are {where}"
    )


def headline(plan: Plan, accounts: CostSummary, prices: Prices) -> tuple[str, ...]:
    """The GPUs held, used and unused, what the unused ones cost, and what applying the plan frees; a line each."""
    if not plan.decisions:
        return ()
    total = accounts.total
    if plan.filter or accounts.fleet is None or accounts.free is None:
        fleet = f"{count(total.gpus)} held"
    else:
        fleet = f"{count(accounts.fleet)}, {gpus_number(total.gpus)} held, {gpus_number(accounts.free)} free"
    if accounts.window:
        unknown = f", {gpus_number(total.unknown)} of unknown use" if total.unknown else ""
        fleet += f". Held: {gpus_number(total.used)} used, {gpus_number(total.unused)} unused{unknown}"
    acted_on = accounts.by_verdict.get(Verdict.ACT.value, CostTotals())
    unused = _price(total.wasted_per_hour, total, accounts, prices, per_hour_and_month)
    could = _price(total.reclaimable_per_hour, acted_on, accounts, prices)
    freeable = ", ".join(filter(None, (count(total.reclaimable), could)))
    freed = gpus_number(total.enforced) if total.enforced > 0 else "none"
    price = _price(total.enforced_per_hour, acted_on, accounts, prices)
    costs = f"Unused: {unused}. " if unused and accounts.window else ""
    return (
        f"{fleet}.",
        f"{costs}Could be freed: {freeable}. This plan frees {freed}{f' ({price})' if price else ''}.",
    )


def _price(
    hourly: float,
    part: CostTotals,
    accounts: CostSummary,
    prices: Prices,
    words: Callable[[float, str], str] = per_hour,
) -> str:
    """A price of an hour, and what it lacks: that of some pods of this part of the fleet, or of nodes like theirs."""
    if hourly <= 0:
        return ""
    reserve = "about " if accounts.nodes_that_differ else ""
    reserve = "at least " if part.unpriced else reserve
    return reserve + words(hourly, prices.currency)


def rows_of(plan: Plan, prices: Prices) -> tuple[Row, ...]:
    """Every workload of the plan once, in its order."""
    nodes = plan.fleet.nodes if plan.fleet else {}
    return tuple(_row(decision, nodes, prices) for decision in plan.decisions)


def cluster_words(plan: Plan) -> str:
    """Sentence that names the plan's cluster."""
    return f"Cluster: {plan.cluster.words if plan.cluster else 'none, the objects are from a file'}"


def filter_words(plan: Plan) -> str:
    """Sentence that names the filter of the plan; empty if there is none."""
    if not plan.filter:
        return ""
    shown = len(plan.decisions)
    return f"Filter: {plan.filter}: {shown} of {count(shown + plan.left_out, 'workload')}"


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


def rates_of(plan: Plan, prices: Prices) -> Mapping[ObjectRef, float]:
    """The price of a whole GPU of each workload for an hour; those of unknown price are left out."""
    found = ((row.decision.workload, row.cost_per_hour) for row in rows_of(plan, prices))
    known = ((workload, cost) for workload, cost in found if cost is not None)
    return {workload.ref: cost / workload.gpus for workload, cost in known if workload.gpus}


ROWS = 10
"""Rows of a table for people; JSON has all."""


_UNKNOWN = "?"


def totals_of(accounts: CostSummary, prices: Prices) -> tuple[Table, ...]:
    """The whole fleet's table, and one for each of its partitions."""
    columns = _Columns(has_hours=bool(accounts.window), prices=prices if _has_prices(accounts) else None)
    partitions = (
        ("class", accounts.by_class),
        ("namespace", accounts.by_namespace),
        ("model", accounts.by_model),
    )
    whole = Table(("total", *columns.head()), (("all", *columns.cells(accounts.total)),))
    return (whole, *(_partition(title, parts, columns) for title, parts in partitions))


def _has_prices(accounts: CostSummary) -> bool:
    return accounts.total.cost_per_hour > 0


def _partition(title: str, parts: Mapping[str, CostTotals], columns: "_Columns") -> Table:
    largest = sorted(parts.items(), key=lambda part: (-part[1].gpus, part[0]))
    rows = tuple((name, *columns.cells(account)) for name, account in largest[:ROWS])
    return Table((title, *columns.head()), rows, max(0, len(largest) - ROWS))


@dataclasses.dataclass(frozen=True, slots=True)
class _Columns:
    """The columns that have values."""

    has_hours: bool
    prices: Prices | None

    def head(self) -> tuple[str, ...]:
        names = ["held", "used", "reclaim", "apply"]
        if self.has_hours:
            names += ["GPU-h"]
        if self.prices:
            names += [f"{self.prices.currency}/h", "wasted"]
        elif self.has_hours:
            names += ["unused"]
        return tuple(names)

    def cells(self, account: CostTotals) -> tuple[str, ...]:
        cells = [
            gpus_number(account.gpus),
            percent(used_share(account)),
            gpus_number(account.reclaimable),
            gpus_number(account.enforced),
        ]
        if self.has_hours:
            cells += [short(account.gpu_hours_held)]
        if self.prices:
            cells += _money(account)
        elif self.has_hours:
            cells += [short(unused_hours(account))]
        return tuple(cells)


def _money(account: CostTotals) -> tuple[str, str]:
    """Price of the held GPUs and of the unused ones; unknown is never zero."""
    if not account.cost_per_hour and account.unpriced:
        return _UNKNOWN, _UNKNOWN
    wasted = _UNKNOWN if used_share(account) is None else short(account.wasted_per_hour)
    return short(account.cost_per_hour), wasted


def used_share(account: CostTotals) -> float | None:
    """Mean activity of the held GPUs, 0 to 1, over the GPU-hours for which it is known; None if for none."""
    known = account.gpu_hours_held - account.gpu_hours_unknown
    return account.gpu_hours_used / known if known > 0 else None


def unused_hours(account: CostTotals) -> float:
    """GPU-hours that were held and measured as unused."""
    return max(0.0, account.gpu_hours_held - account.gpu_hours_unknown - account.gpu_hours_used)


def remarks(accounts: CostSummary, prices: Prices) -> tuple[str, ...]:
    """Notes about the totals."""
    parts = f", with {accounts.total.parts} MIG instances and shares as parts" if accounts.total.parts else ""
    words = [
        f"HELD: GPUs that pods hold{parts}. USED: mean utilization.",
        "RECLAIM: GPUs that the findings would free. APPLY: those that policy and budgets let this plan free.",
    ]
    if accounts.window:
        span = format_duration(accounts.window.total_seconds())
        words.append(f"GPU-H: GPU-hours held in the last {span} by the pods that exist now.")
        if accounts.total.gpu_hours_unknown > 0:
            unknown = number(round(accounts.total.gpu_hours_unknown))
            words.append(f"Utilization is unknown for {unknown} GPU-hours.")
    if _has_prices(accounts):
        words.append(f"WASTED: {prices.currency} per hour for GPU time that is not used.")
    return (*words, *price_words(accounts, prices))


def price_words(accounts: CostSummary, prices: Prices) -> Iterator[str]:
    """Sources of the prices, and the number of pods without a price."""
    if _has_prices(accounts):
        yield f"Prices in {prices.currency} per GPU-hour: {_price_sources(accounts)}."
    for source, nodes in accounts.nodes_that_differ.items():
        held = ", ".join(_differing(source, nodes))
        yield f"{source.name} is of {source.region}, but of these nodes {held}; --prices FILE sets their prices."
    if accounts.total.unpriced:
        yield f"No price is known for the GPUs of {count(accounts.total.unpriced, 'pod')}; --prices FILE sets prices."


def _differing(source: PriceSource, nodes: Sequence[Node]) -> Iterator[str]:
    regions = collections.Counter(node.region for node in nodes)
    for region, number_of in sorted(regions.items()):
        if region not in {"", source.region} and source.region != ALL_REGIONS:
            yield f"{_are(number_of)} in {region}"
    if spot := sum(node.is_spot for node in nodes):
        yield f"{_are(spot)} spot"


def _are(number_of: int) -> str:
    return f"{number_of} {'is' if number_of == 1 else 'are'}"


def _price_sources(accounts: CostSummary) -> str:
    sources = accounts.nodes_by_source
    if len(sources) == 1:
        return str(next(iter(sources)))
    return "; ".join(f"{source} ({count(nodes, 'node')})" for source, nodes in sources.items())


def stranded_lines(plan: Plan) -> tuple[str, ...]:
    """The free GPUs that pods wait for, most first, and the number of the other free ones."""
    found = plan.fleet.stranded if plan.fleet else ()
    wanted = [gpus for gpus in found if gpus.reasons or gpus.waiting]
    unwanted = sum(gpus.free for gpus in found) - sum(gpus.free for gpus in wanted)
    largest = sorted(wanted, key=lambda gpus: (-gpus.free, gpus.node, gpus.resource))
    lines = [_stranded_words(gpus) for gpus in largest[:ROWS]]
    if len(largest) > ROWS:
        lines.append(f"and on {count(len(largest) - ROWS, 'node')} more")
    if unwanted:
        lines.append(f"{count(unwanted)} free that no pending pod needs")
    return tuple(lines)


def _stranded_words(gpus: Stranded) -> str:
    waiting = ", ".join(map(str, gpus.waiting))
    words = "; ".join((*gpus.reasons, *([f"waiting: {waiting}"] if waiting else [])))
    return f"{gpus.free} {gpus.resource} on {gpus.node}: {words}"


def node_lines(plan: Plan, prices: Prices) -> tuple[str, ...]:
    """Nodes that the plan empties, and whether something removes them."""
    freed = sum(decision.frees for decision in plan.enforced if decision.action is not Action.NOTICE)
    if plan.fleet is None or freed <= 0:
        return ()
    found = emptied_nodes(plan)
    paid = "A freed GPU costs money until its node is removed"
    lines = [f"{paid}. {_emptied_words(found, prices)}"]
    by_words: dict[str, list[str]] = {}
    for emptied in found:
        by_words.setdefault(_removal_words(emptied), []).append(emptied.node.name)
    lines += [f"{_few(names)}: {words}" for words, names in by_words.items()]
    return tuple(lines)


def _emptied_words(emptied: Sequence[EmptiedNode], prices: Prices) -> str:
    if not emptied:
        return "No node loses its last GPU pod by this plan."
    costs = [node_cost(emptied_node.node, prices) for emptied_node in emptied]
    known = sum(cost for cost in costs if cost is not None)
    money = f", {'at least ' if None in costs else ''}{per_hour(known, prices.currency)}" if known else ""
    gpus = count(sum(gpus_of_node(emptied_node.node) for emptied_node in emptied))
    return f"This plan takes the last GPU pod of {count(len(emptied), 'node')} ({gpus}{money})."


def node_cost(node: Node, prices: Prices) -> float | None:
    """The price of all GPUs of a node for an hour; None if it is unknown."""
    price = prices.of_node(node)
    return None if price is None else price * gpus_of_node(node)


def _removal_words(emptied: EmptiedNode) -> str:
    """Whether an autoscaler removes an emptied node, as far as its labels and pods tell."""
    after = f"; {count(emptied.other_pods, 'pod')} without GPUs must move first" if emptied.other_pods else ""
    match emptied.node.autoscaler:
        case None:
            return f"no node autoscaler is visible; without one, somebody must remove it{after}"
        case NodeAutoscaler.KARPENTER:
            name, terms = "Karpenter", f"NodePool {emptied.node.pool} allows it"
        case NodeAutoscaler.CLUSTER_AUTOSCALER:
            name, terms = "cluster-autoscaler", f"it runs and scales node group {emptied.node.pool}"
    if emptied.kept_by:
        return f"{name} does not remove it: {emptied.kept_by}"
    return f"{name} can remove it if {terms}{after}"


_NAMED = 3


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {count(more, 'node')} more" if more > 0 else "")
