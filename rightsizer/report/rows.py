"""A plan as every form shows it: one row for each workload, and small tables of totals. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence

from rightsizer.config import format_duration
from rightsizer.model import Confidence, Decision, Finding, Node, Plan, Stranded, Verdict
from rightsizer.planning.cost_summary import Account, Accounts
from rightsizer.prices import Prices
from rightsizer.text import block_words, count, number, percent, short, wanted_words


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
        """Every blocker, permanent or temporary, in words."""
        restrictions = (blocker.message for blocker in self.decision.restrictions)
        return (*restrictions, *map(block_words, self.decision.blockers), *wanted_words(self.decision))


def proposal_words(finding: Finding, shown: Sequence[str]) -> str:
    """What a finding proposes; empty where nothing, or where what is shown of its evidence says so already."""
    proposed = finding.proposal.words if finding.proposal else ""
    return "" if proposed in shown else proposed


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


ROWS = 10
"""What a person takes in; the rest stands in the JSON."""


_UNKNOWN = "?"
_HOURS_PER_MONTH = 730


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """A table.

    Attributes:
        title: What it is by, in one word.
        head: Names of the columns after the first.
        rows: Name and cells of each, largest first.
        more: How many rows were left out.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    more: int = 0


def totals_of(accounts: Accounts, prices: Prices) -> tuple[Totals, ...]:
    """The whole fleet's table, and one for each of its partitions."""
    columns = _Columns(has_hours=bool(accounts.window), prices=prices if _has_prices(accounts) else None)
    partitions = (
        ("class", accounts.by_class),
        ("namespace", accounts.by_namespace),
        ("model", accounts.by_model),
    )
    whole = Totals("total", columns.head(), (("all", columns.cells(accounts.total)),))
    return (whole, *(_partition(title, parts, columns) for title, parts in partitions))


def _has_prices(accounts: Accounts) -> bool:
    return accounts.total.cost_per_hour > 0


def _partition(title: str, parts: Mapping[str, Account], columns: "_Columns") -> Totals:
    largest = sorted(parts.items(), key=lambda part: (-part[1].gpus, part[0]))
    rows = tuple((name, columns.cells(account)) for name, account in largest[:ROWS])
    return Totals(title, columns.head(), rows, max(0, len(largest) - ROWS))


@dataclasses.dataclass(frozen=True, slots=True)
class _Columns:
    """Which columns there is something to say in."""

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

    def cells(self, account: Account) -> tuple[str, ...]:
        cells = [
            f"{account.gpus:,}",
            percent(used_share(account)),
            number(account.reclaimable),
            number(account.enforced),
        ]
        if self.has_hours:
            cells += [short(account.gpu_hours_held)]
        if self.prices:
            cells += _money(account)
        elif self.has_hours:
            cells += [short(unused_hours(account))]
        return tuple(cells)


def _money(account: Account) -> tuple[str, str]:
    """What is held and what is wasted of it; what has no price, or no measured use, is no zero."""
    if not account.cost_per_hour and account.unpriced:
        return _UNKNOWN, _UNKNOWN
    wasted = _UNKNOWN if used_share(account) is None else short(account.wasted_per_hour)
    return short(account.cost_per_hour), wasted


def used_share(account: Account) -> float | None:
    """Mean activity of what is held, 0 to 1, of the GPU-hours for which it is known; None where it is of none."""
    known = account.gpu_hours_held - account.gpu_hours_unknown
    return account.gpu_hours_used / known if known > 0 else None


def unused_hours(account: Account) -> float:
    """GPU-hours that were held and are known not to have been used."""
    return max(0.0, account.gpu_hours_held - account.gpu_hours_unknown - account.gpu_hours_used)


def remarks(accounts: Accounts, prices: Prices) -> tuple[str, ...]:
    """What has to be known to read the totals."""
    words = ["RECLAIM: GPUs that could be freed. APPLY: GPUs that this plan frees."]
    if accounts.window:
        span = format_duration(accounts.window.total_seconds())
        words.append(f"GPU-hours and utilization cover the last {span} and only pods that exist now.")
        if accounts.total.gpu_hours_unknown > 0:
            unknown = number(round(accounts.total.gpu_hours_unknown))
            words.append(f"Utilization is unknown for {unknown} GPU-hours.")
    if _has_prices(accounts):
        words.append(f"Prices per GPU and hour in {prices.currency}: {price_source(prices)}.")
        hourly = accounts.total.reclaimable_per_hour
        monthly = f"{hourly * _HOURS_PER_MONTH:,.0f} {prices.currency}/month"
        words.append(f"Possible saving: {hourly:,.2f} {prices.currency}/hour ({monthly}).")
    if accounts.total.unpriced:
        words.append(
            f"The GPUs of {count(accounts.total.unpriced, 'pod')} have no price; --prices FILE gives one."
        )
    return tuple(words)


def price_source(prices: Prices) -> str:
    """Where the prices come from."""
    table = f"{prices.source}, {prices.date}"
    if not prices.nodes:
        return table
    return f"OpenCost's of {count(len(prices.nodes), 'node')}; else {table}"


def stranded_lines(plan: Plan) -> tuple[tuple[Stranded, ...], int, int]:
    """What is free and wanted, most first; how many such entries were left out; GPUs free that nobody waits for."""
    found = plan.fleet.stranded if plan.fleet else ()
    wanted = [one for one in found if one.reasons or one.waiting]
    unwanted = sum(one.free for one in found) - sum(one.free for one in wanted)
    largest = sorted(wanted, key=lambda one: (-one.free, one.node, one.resource))
    return tuple(largest[:ROWS]), max(0, len(largest) - ROWS), unwanted


def stranded_words(one: Stranded) -> str:
    """Why it is free, and who waits for it."""
    waiting = ", ".join(map(str, one.waiting))
    return "; ".join((*one.reasons, *([f"waiting: {waiting}"] if waiting else [])))
