"""One random cluster: people live in it, things fail, and the rightsizer's own cycle runs, through its real code.

What stands for `run` is its body: reconcile, plan, carry out, verify, under a Lease, over HTTP. Only Prometheus is the
truth itself, or scrapes it, so that a cycle takes a fraction of a second. Everything is drawn from one seed.
"""

import collections
import contextlib
import dataclasses
import datetime
import json
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import yaml

from rightsizer.__main__ import parser
from rightsizer.cli.cycle import ActingCycle
from rightsizer.cli.plan_session import NO_STATE, KeptState, PlanSession
from rightsizer.config import ClusterSettings
from rightsizer.errors import ClusterError, RightsizerError
from rightsizer.execute.executor import NOT_MADE
from rightsizer.execute.run_context import Deadline, RunContext
from rightsizer.execute.undo import find_undoable, undo_changes
from rightsizer.findings.oversized_gpu import NOWHERE
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.lease import Lease
from rightsizer.model import Action, BlockerCode, Decision, Mode, ObjectRef, Plan
from rightsizer.prices import Prices
from simulator.kube import ApiServer, Fault, Rule
from tests.rightsizer.readers import Readers
from tests.rightsizer.wire.checker import Checker
from tests.rightsizer.wire.clock import Clock
from tests.rightsizer.wire.draws import draw_policy
from tests.rightsizer.wire.people import People, happenings
from tests.rightsizer.wire.recorder import OWN, Recorder
from tests.rightsizer.wire.scraped import Scraped
from tests.rightsizer.wire.truth import Truth

START = datetime.datetime(2026, 3, 2, 9, 0, tzinfo=datetime.UTC)
_LIMITS = {BlockerCode.BUDGET, BlockerCode.NO_CAPACITY}
_SMALLER = {Action.RESIZE, Action.RESLICE}
_THIRD_PARTIES = 0.1
"""Share of the clusters that have third parties' kinds."""
_SPANS = [datetime.timedelta(minutes=20), *(datetime.timedelta(hours=hours) for hours in (1, 3, 7, 26))]
_FAULTS: tuple[Mapping[str, Any], ...] = (
    *({"status": code} for code in (409, 429, 500, 503, 504)),
    *({"status": code, "after_effect": True} for code in (500, 504)),
    {"drop": True},
    {"drop": True, "after_effect": True},
)
_WHERE = (
    "deployments/",
    "statefulsets/",
    "eviction",
    "/pods",
    "secrets",
    "configmaps",
    "namespaces",
    "events",
    "/w",
)


class Replica:
    """One process of `run`, as far as it is about cycles.

    Args:
        world: Where it stands.
        name: Its user's, and who it is in the Lease.
    """

    def __init__(self, world: "World", name: str) -> None:
        self._world, self.name = world, name
        world.api.add_user(name, name)
        world.api.allow(Rule(name))
        kubeconfig = world.directory / f"{name}.yaml"
        kubeconfig.write_text(yaml.safe_dump(world.api.kubeconfig(name)))
        flags = ["--kubeconfig", str(kubeconfig), "--policy", str(world.directory / "policy.yaml")]
        self._arguments = parser().parse_args(
            ["run", "--yes", "--prometheus-url", "http://127.0.0.1:9", *flags]
        )
        quick = Cluster(ClusterSettings(kubeconfig=kubeconfig, timeout_s=5.0))
        clock = world.clock
        self.lease = Lease(quick, OWN, name, monotonic=clock.monotonic, clock=clock.machine)

    @contextlib.contextmanager
    def session(self, kept: KeptState = NO_STATE) -> Iterator[PlanSession]:
        """A new one for each cycle, as `run` has it, with the truth, or what is scraped of it, as its Prometheus."""
        session = PlanSession(self._arguments, machine=self._world.clock.machine, kept=kept)
        scraped = self._world.scraped
        if scraped is not None:
            session.prometheus, session.signal = scraped.connected()
        else:
            session.signal = self._world.truth  # type: ignore[assignment]
            session.prometheus = self._world.truth  # type: ignore[assignment]
        with contextlib.closing(session):
            yield session

    def cycle(self) -> None:
        """What `run` does each time: after a refusal that leaves room in budgets, another cycle begins."""
        kept = NO_STATE
        while (refused := kept.refused | self._cycle(kept)) != kept.refused:
            kept = KeptState(began=kept.began or self._world.clock.machine(), refused=refused)

    def _cycle(self, kept: KeptState) -> frozenset[ObjectRef]:
        """What refused a change while others waited for budgets."""
        self._world.cycles += 1
        try:
            with self.session(kept) as session:
                session.run = f"run-{self._world.cycles}-{self.name}"
                if self.lease.try_acquire():
                    session.cluster.before_writing = self.lease.require_held
                    return self._act(session)
                session.observe()
        except RightsizerError as error:
            self._world.ended[type(error).__name__] += 1
        return frozenset()

    def _act(self, session: PlanSession) -> frozenset[ObjectRef]:
        context = RunContext(
            cluster=session.cluster,
            run=session.run,
            state_namespace=OWN,
            instance=session.instance,
            clock=session.clock,
            evicts=session.evicts,
            bind_within=session.policy.policy.demand.bindWithin,
        )
        readers = _Readers(self._world, self._patience())
        ActingCycle(session, context, readers).run()
        self._world.ended.update(f"{one.action} {one.result.value}" for one in readers.outcomes)
        made = [one for one in readers.outcomes if not one.is_reconciliation]
        return frozenset(one.ref for one in made if readers.is_short and one.result in NOT_MADE)

    def _patience(self) -> Deadline:
        waits = iter(range(1000))
        return Deadline(2.0, lambda: float(next(waits)), lambda _: self._world.api.settle(), lambda: False)


class _Readers(Readers):
    """Who reads what a replica does: a world that counts it.

    Attributes:
        is_short: Whether a budget kept something from being changed.
    """

    def __init__(self, world: "World", deadline: Deadline) -> None:
        super().__init__(deadline)
        self.is_short = False
        self._world = world

    def chosen(self, plan: Plan, prices: Prices) -> Sequence[Decision]:
        """All that rules enforce."""
        blocks = [(one, {each.code for each in one.blockers}) for one in plan.decisions]
        self._world.due |= {
            (one.workload.ref.namespace, one.workload.ref.name, one.action in _SMALLER)
            for one, codes in blocks
            if one.mode is Mode.ENFORCE and one.action and codes <= _LIMITS
        }
        self._world.short |= {
            (one.workload.ref.namespace, one.workload.ref.name)
            for one, codes in blocks
            if NOWHERE in one.finding.words or BlockerCode.NO_CAPACITY in codes
        }
        self.is_short = any(BlockerCode.BUDGET in codes for _, codes in blocks)
        return super().chosen(plan, prices)


class World:
    """A cluster, its people, and two replicas of ours.

    Args:
        is_scraped: Whether a Prometheus lies between the truth and the rightsizer.
        amend: What becomes of the drawn policy.

    Attributes:
        ended: How runs, and what was done in them, came out.
        due: Workloads that were changed, or only limits of a plan kept from it, by namespace and name; and whether
            their pods were to be smaller.
        short: Those for which a plan found no free slice.
        newcomers: Called once its people have settled in, to add others.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        seed: int,
        *,
        is_scraped: bool = False,
        amend: Callable[[dict[str, Any]], dict[str, Any]] = lambda policy: policy,
    ) -> None:
        self.directory, self.dice = directory, random.Random(seed)
        self.clock = Clock(START - datetime.timedelta(days=4))
        # Nobody here has objects of theirs, and to look for some in each cycle takes three quarters of all requests.
        has_third_parties = self.dice.random() < _THIRD_PARTIES
        self.api = ApiServer(clock=self.clock, termination_delay_s=0.0, third_party=has_third_parties)
        self.truth = Truth(self.api, self.clock)
        self.scraped = self._scraped(random.Random(f"Prometheus of {seed}")) if is_scraped else None
        policy = amend(draw_policy(self.dice))
        (directory / "policy.yaml").write_text(json.dumps(policy))
        self.checker = Checker(policy, self.truth, self.api)
        self.recorder = Recorder(self.api, self.clock, self.checker.hear)
        self.people = People(self.api, self.clock, self.truth, self.checker, self.dice)
        self.cycles = 0
        self.ended: collections.Counter[str] = collections.Counter()
        self.due: set[tuple[str, str, bool]] = set()
        self.short: set[tuple[str, str]] = set()
        self.newcomers: Callable[[], object] = lambda: None
        self.checker.where = f"seed {seed}"

    def __enter__(self) -> Self:
        self.api.start()
        # At once, or it depends on the machine's load which pod is placed first.
        with self.api.batch():
            self.people.settle_in(self.dice.randint(5, 20))
        self.api.settle()
        with self.api.batch():
            self.newcomers()
        if self.scraped is not None:
            self.scraped.settle_in()
        self.api.settle()
        self.clock.go(START - self.clock.now)
        self.replicas = [Replica(self, "replica-a"), Replica(self, "replica-b")]
        self.reader = Replica(self, "reader")
        self.person = Replica(self, "person")
        self.checker.readers.add("reader")
        self.checker.persons.add("person")
        return self

    def __exit__(self, *_: object) -> None:
        self.api.stop()

    def _scraped(self, dice: random.Random) -> Scraped:
        """Most name the exporters' namespace, half have recording rules, of which some are young."""
        named, records = dice.random() < 0.7, dice.random() < 0.5
        since = START - datetime.timedelta(hours=dice.choice([24 * 9, 30, 2])) if records else None
        return Scraped(self.api, self.clock, self.truth, names_exporters=named, records_since=since)

    def step(self, number: int) -> None:
        """Something happens, time goes by, and one of ours has its turn, or somebody does by hand what they do."""
        self.checker.where = f"{self.checker.where.partition(', ')[0]}, step {number}"
        for happen in happenings(self.people, self.dice):
            happen()
        self.api.settle()
        self.clock.go(self.dice.choice(_SPANS))
        turn = self.dice.random()
        if turn < 0.05:
            self._only_plan()
        elif turn < 0.12:
            self._undo()
        else:
            self._cycle()
        self.api.clear_faults()
        self.truth.errors = 0
        self.api.settle()

    def _only_plan(self) -> None:
        with contextlib.suppress(RightsizerError), self.reader.session() as session:
            session.observe()

    def _undo(self) -> None:
        """A person puts some of it back."""
        with self.person.session() as session:
            items = find_undoable(session.cluster, OWN, at=session.clock())
            some = self.dice.sample(items, min(len(items), self.dice.choice([1, 3])))
            waits = iter(range(1000))
            deadline = Deadline(0.0, lambda: float(next(waits)), lambda _: self.api.settle(), lambda: False)
            for outcome in undo_changes(
                some, session.cluster, force=False, clock=self.clock, deadline=deadline
            ):
                self.ended[f"undo {outcome.result.value}"] += 1

    def _cycle(self) -> None:
        self.dice.shuffle(self.replicas)
        first, second = self.replicas
        self._spoil()
        self._surprise(second)
        self.clock.skew = datetime.timedelta(hours=self.dice.choice([0] * 12 + [-3, 3, 40]))
        try:
            first.cycle()
        finally:
            self.truth.before = lambda: None
            self.recorder.before = lambda *_: None
            self.clock.skew = datetime.timedelta()

    def _spoil(self) -> None:
        """Let requests fail, or Prometheus."""
        if self.dice.random() < 0.3:
            how = self.dice.choice(_FAULTS)
            method = self.dice.choice(["PATCH", "POST", "POST", "GET", "*"])
            self.api.inject(Fault(self.dice.choice(_WHERE), method, self.dice.randint(1, 3), **how))
        if self.dice.random() < 0.1:
            self.truth.errors = self.dice.randint(1, 3)

    def _surprise(self, other: Replica) -> None:
        """Let something happen in the middle: where a look cannot have missed it, or a write names the version."""
        kind = self.dice.choice(["", "", "before-a-look", "at-any-read", "pause", "other-replica"])
        left = [self.dice.choice([0, 1, 2, 5])]
        people = self.people
        match kind:
            case "before-a-look":
                self.truth.before = _once(
                    left,
                    self.dice.choice(
                        [
                            *(
                                people.opt_out_pod,
                                people.opt_out_namespace,
                                people.reprioritise,
                                people.disrupt,
                            ),
                            *(self._wake_up, people.opt_out, people.lie, people.relabel),
                        ]
                    ),
                )
            case "at-any-read":
                left = [self.dice.randrange(200)]
                self._at_reads(
                    "", _once(left, self.dice.choice([people.opt_out, people.delete, people.resize]))
                )
            case "pause":
                self._at_reads("gpu-rightsizer-state", _once(left, people.pause))
            case "other-replica":
                left = [self.dice.randrange(200)]
                self._at_reads("", _once(left, lambda: self._overtake(other)))

    def _at_reads(self, where: str, act: Callable[[], None]) -> None:
        def before(user: str, path: str) -> None:
            if where in path and user.startswith("replica"):
                act()

        self.recorder.before = before

    def _wake_up(self) -> None:
        """Half a minute ago, so that it shows."""
        now = self.clock.now
        self.clock.now -= datetime.timedelta(seconds=30)
        for _ in range(4):
            self.people.work()
        self.clock.now = now

    def _overtake(self, other: Replica) -> None:
        """The first stands still for longer than its Lease lasts, and another one has a cycle meanwhile."""
        self.recorder.before = lambda *_: None
        for _ in range(2):
            self.clock.go(datetime.timedelta(seconds=20))
            with contextlib.suppress(ClusterError):
                other.lease.try_acquire()
        other.cycle()


def _once(left: list[int], act: Callable[[], None]) -> Callable[[], None]:
    """Do it once, when it is asked for so many times."""

    def maybe() -> None:
        left[0] -= 1
        if left[0] == -1:
            act()

    return maybe


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """What became of one cluster."""

    actions: int
    counts: Mapping[str, int]
    ended: Mapping[str, int]
    requests: int
    violations: tuple[str, ...]


def live(directory: pathlib.Path, seed: int, steps_: int) -> Life:
    """So many steps of one cluster."""
    directory.mkdir(parents=True, exist_ok=True)
    with World(directory, seed) as world:
        for number in range(steps_):
            world.step(number)
        return Life(
            len(world.checker.takes),
            world.checker.counts,
            world.ended,
            world.recorder.reads + world.checker.counts["requests that may change something"],
            tuple(world.checker.violations),
        )
