"""Provenance of series: a series counts if it comes from the exporter on its pod's node. Pure.

A scraped target is known by its `job` and `instance`. It is an exporter if its address is that of a pod in a namespace
of exporters: those that are given, else the one whose targets are on most GPU nodes. A node's address is an exporter's
if such a pod uses its network, or if most targets have addresses of nodes. A series counts
- if its job has an exporter, or, without given namespaces, a target with an unknown address,
- and if its instance is an exporter, or now unknown, since exporters restart,
- and if any pod that it names runs on its target's node,
- and if it does not name another cluster than the present targets of these jobs that name one.
"""

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import Address, PodKey, Whereabouts
from rightsizer.prometheus import promql
from rightsizer.text import count
from rightsizer.usage.source_metrics import CLUSTER, JOB, TARGET

TARGET_LABELS = (JOB, TARGET, CLUSTER)
"""What identifies a scraped target."""

MIN_COVERED = 0.5
"""Share of the nodes with GPU pods that must have an exporter for its namespace to be found."""
RIVAL = 0.5
"""Another namespace with targets on more than this share of the exporters' nodes may hold exporters, too."""

MAX_EXCLUDED = 1_500
"""Characters of the targets that every query excludes by name; series of others are left out when they are read."""
_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A scraped target that has GPU series now."""

    job: str
    instance: str
    series: int = dataclasses.field(compare=False)
    cluster: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Provenance:
    """Which series are evidence; without namespaces of exporters all are."""

    whereabouts: Whereabouts | None = None
    namespaces: frozenset[str] = frozenset()
    jobs: tuple[str, ...] = ()
    ignored: tuple[ScrapeTarget, ...] = ()  # targets that are no exporters
    problem: str = ""  # why the exporters are not known
    doubt: str = ""  # why they are uncertain
    # That present targets which count name; empty if none names one, None if they name several
    cluster: str | None = None
    needs_port: bool = False  # whether an instance without a port is no exporter's
    trusts_hosts: bool = True  # whether any address of a node is an exporter's
    strangers: set[PodKey] = dataclasses.field(default_factory=set, compare=False)
    """Pods that targets on other nodes named."""

    @property
    def lasting_matchers(self) -> tuple[str, ...]:
        """Those of `matchers` that hold as long as the scrape configuration does."""
        if not self.namespaces:
            return ()
        # Targets are sought by raw series. One that exposes recorded series only, without `instance`, is not found.
        return (promql.one_of(JOB, self.jobs), *([promql.none_of(TARGET, [""])] if self.needs_port else []))

    @property
    def matchers(self) -> tuple[str, ...]:
        """Matchers that exclude most of the ignored series."""
        instances = sorted({one.instance for one in self.ignored if one.job in self.jobs})
        excluded = itertools.islice(promql.batches(instances, MAX_EXCLUDED), 1 if self.namespaces else 0)
        return (*self.lasting_matchers, *(promql.none_of(TARGET, each) for each in excluded))

    @property
    def cache_key(self) -> object:
        """What decides which targets count: while it is the same, a series that counted still does."""
        ignored = tuple(sorted({(one.job, one.instance) for one in self.ignored}))
        return sorted(self.namespaces), self.jobs, ignored, self.cluster, self.needs_port, self.trusts_hosts

    def is_foreign(self, cluster: str) -> bool:
        """Whether a series with this label of the cluster is another cluster's; queries may have dropped the label."""
        return self.cluster is not None and cluster not in {"", self.cluster}

    def accepts(self, pod: PodKey | None, job: str, instance: str) -> bool:
        """Whether a series is evidence; job and instance are empty where a query has merged several."""
        if not self.namespaces or self.whereabouts is None:
            return True
        if job and job not in self.jobs:
            return False
        place = find_place(instance, self.whereabouts)
        is_label = self.needs_port and bool(instance) and not has_port(instance)
        if place is None or is_label:
            return not is_label
        if not self.is_exporter(instance, place):
            return False
        node = None if pod is None else self.whereabouts.pods.get(pod)
        if pod is None or node is None or node == place.node:
            return True
        self.strangers.add(pod)
        return False

    def accepts_target(self, labels: Mapping[str, str]) -> bool:
        """Whether a series that names no pod, or several, is evidence."""
        job, instance, cluster = (labels.get(name, "") for name in TARGET_LABELS)
        return self.accepts(None, job, instance) and not self.is_foreign(cluster)

    def counted(self, found: Iterable[tuple[str, ScrapeTarget]]) -> collections.Counter[str]:
        """The series that exporters have now, by their name."""
        ignored, series = set(self.ignored), collections.Counter[str]()
        for name, one in found:
            series[name] += one.series * (one not in ignored and not self.is_foreign(one.cluster))
        return series

    def is_exporter(self, instance: str, place: Address | None) -> bool:
        """Whether a target is an exporter by its address."""
        if place is None or self.whereabouts is None:
            return False
        # A name, or an address without a port, is a label that somebody chose: `needs_port` decides.
        if place.is_of_host and has_port(instance) and not self.trusts_hosts:
            return self.whereabouts.addresses.has_pod_on_host(self.namespaces, place.node)
        return not place.namespace or place.namespace in self.namespaces

    @property
    def series(self) -> int:
        """The number of ignored series of targets that are no exporters."""
        return sum(one.series for one in self.ignored)

    def words(self) -> Iterator[str]:
        """What is ignored, and what is doubtful, for people."""
        if self.doubt:
            yield self.doubt
        if self.ignored:
            names = ", ".join(one.instance or "(none)" for one in self.ignored[:_SHOWN])
            yield (
                f"{self.series} GPU series of {count(len(self.ignored), 'target')} ignored: "
                f"not from an exporter ({names}{', ...' if len(self.ignored) > _SHOWN else ''})"
            )
        if self.strangers:
            pods = ", ".join("/".join(pod) for pod in sorted(self.strangers)[:_SHOWN])
            yield f"GPU series ignored: an exporter on another node names {pods}"


EVERYTHING = Provenance()

UNKNOWN = (
    f"on most GPU nodes the label {TARGET} of GPU series is no address of a pod or node, so every scraped target "
    "counts"
)


def find_provenance(
    targets: Sequence[ScrapeTarget], whereabouts: Whereabouts, given: Collection[str]
) -> Provenance:
    """Which of these targets are exporters; `given` are the namespaces of exporters, if they are known.

    Raises:
        EvidenceIncomplete: None of the targets is in the given namespaces.
    """
    places = {one.instance: find_place(one.instance, whereabouts) for one in targets}
    covered: dict[str, set[str]] = {}
    nodes = set(filter(None, whereabouts.pods.values()))
    for place in filter(None, places.values()):
        covered.setdefault(place.namespace, set()).update({place.node} & nodes)
    namespaces, doubt = (frozenset(given), "") if given else _found(covered, nodes)
    if not namespaces or not covered:
        return Provenance(problem=UNKNOWN if nodes else "")
    own = Provenance(whereabouts, namespaces, trusts_hosts="" in namespaces)
    trusted = [one for one in targets if own.is_exporter(one.instance, places[one.instance])]
    if not trusted:
        elsewhere = ", ".join(sorted(name or "nodes" for name in covered))
        raise EvidenceIncomplete(
            f"no GPU series comes from a pod in {', '.join(sorted(namespaces))} (--exporter-namespace); "
            f"targets are in: {elsewhere}"
        )
    # A pod's label may become its instance (`labelmap`), and name a node. It cannot hold a port, as an address does.
    needs_port = bool(given) and any(has_port(one.instance) for one in trusted)
    portless = {one for one in targets if needs_port and not has_port(one.instance)}
    exporters = set(trusted) - portless
    # Targets that cannot be resolved may be exporters, unless the namespaces of all exporters are given.
    jobs = {one.job for one in targets if one in exporters or (not given and places[one.instance] is None)}
    ignored = [
        one
        for one in targets
        if one.job not in jobs
        or one in portless
        or (places[one.instance] is not None and one not in exporters)
    ]
    return dataclasses.replace(
        own,
        jobs=tuple(sorted(jobs)),
        ignored=tuple(ignored),
        doubt=doubt,
        cluster=_named_cluster(exporters if given else set(targets) - set(ignored)),
        needs_port=needs_port,
    )


def _named_cluster(targets: Iterable[ScrapeTarget]) -> str | None:
    """The cluster that some of these targets name, and no other; None if they name several."""
    named = {one.cluster for one in targets} - {""}
    return next(iter(named), "") if len(named) <= 1 else None


def _found(covered: Mapping[str, Collection[str]], nodes: Collection[str]) -> tuple[frozenset[str], str]:
    """The namespaces with targets on most GPU nodes, none if they are on too few; and what is doubtful."""
    most = max(map(len, covered.values()), default=0)
    if most == 0 or most < MIN_COVERED * len(nodes):
        return frozenset(), ""
    found = sorted(name for name, on in covered.items() if len(on) > RIVAL * most)
    if len(found) == 1:
        return frozenset(found), ""
    names = " and ".join(name or "nodes" for name in found)
    return frozenset(found), (
        f"GPU series come from targets of {names} on most GPU nodes, and all count: name the exporters' "
        "namespace (--exporter-namespace)"
    )


def has_port(instance: str) -> bool:
    """Whether an instance ends in a port. It is then no pod's label, which cannot hold a colon."""
    _, colon, port = instance.rpartition(":")
    return bool(colon) and port.isdecimal()


def find_place(instance: str, whereabouts: Whereabouts) -> Address | None:
    """Where a target is now: its address, or a node's name, with or without a port."""
    host = instance.rpartition(":")[0] if has_port(instance) else instance
    return whereabouts.addresses.find(host.strip("[]")) if host else None
