"""The Lease has one holder at a time, by monotonic clocks."""

import datetime
import pathlib
from collections.abc import Callable

import pytest

from rightsizer.config import ClusterSettings
from rightsizer.errors import ConfigurationError, LeaseLost, RequestRefused
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.lease import LEASE_DURATION_S, LEASE_NAME, RENEW_DEADLINE_S, LeaderElector, Lease
from simulator.kube import Fault
from tests.rightsizer.world import World

OWN = "gpu-rightsizer"


class Clock:
    """A monotonic clock of the test's own."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def lease_of(world: World, identity: str, clock: Clock, *, year: int = 2026, namespace: str = OWN) -> Lease:
    """A Lease by a clock of the test's, and a wall clock of any year."""
    cluster = Cluster(ClusterSettings(kubeconfig=pathlib.Path(world.directory / "kubeconfig")))
    at = datetime.datetime(year, 11, 21, tzinfo=datetime.UTC)
    return Lease(
        cluster,
        namespace,
        identity,
        monotonic=clock,
        clock=lambda: at + datetime.timedelta(seconds=clock.now),
    )


def _holder(world: World) -> str:
    lease = world.api.get("Lease", OWN, LEASE_NAME)
    assert lease is not None
    return str(lease["spec"]["holderIdentity"])


def test_lease_is_held_by_the_first_until_it_expires(world: World) -> None:
    """Wall clocks do not matter."""
    clock = Clock()
    first, second = lease_of(world, "a", clock, year=2040), lease_of(world, "b", clock, year=1999)
    assert (first.try_acquire(), second.try_acquire()) == (True, False)
    assert (first.is_held, second.is_held, second.holder) == (True, False, "a")
    clock.now += LEASE_DURATION_S - 1
    assert (first.try_acquire(), second.try_acquire()) == (True, False)
    clock.now += LEASE_DURATION_S
    assert not second.try_acquire()
    clock.now += 1.1
    assert second.try_acquire()
    assert _holder(world) == "b"
    lease = world.api.get("Lease", OWN, LEASE_NAME)
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 1


def test_lease_without_renewal_counts_as_lost(world: World) -> None:
    """Long before another process may take it."""
    clock = Clock()
    lease = lease_of(world, "a", clock)
    with pytest.raises(LeaseLost):
        lease.require_held()
    lease.try_acquire()
    lease.require_held()
    clock.now += RENEW_DEADLINE_S + 0.1
    with pytest.raises(LeaseLost, match="does not hold the Lease"):
        lease.require_held()
    assert RENEW_DEADLINE_S < LEASE_DURATION_S
    lease.try_acquire()
    lease.require_held()


def test_lease_is_held_from_before_its_request(world: World) -> None:
    """However late the answer is: others count from the renewal."""
    clock = Clock()
    world.namespace(world.team)
    lease = lease_of(world, "a", clock, namespace=world.team)

    def answer_late() -> None:
        clock.now += RENEW_DEADLINE_S - 1

    world.after("leases", answer_late, method="POST")
    assert (lease.try_acquire(), lease.is_held) == (True, True)
    clock.now += 1
    assert not lease.is_held


def test_lease_taken_by_two_at_once_goes_to_one(world: World) -> None:
    """The resourceVersion refuses the slower one."""
    clock = Clock()
    lease_of(world, "gone", clock).try_acquire()
    a, b = lease_of(world, "a", clock), lease_of(world, "b", clock)
    assert (a.try_acquire(), b.try_acquire()) == (False, False)
    clock.now += LEASE_DURATION_S + 0.1
    world.api.inject(Fault(f"leases/{LEASE_NAME}", "PUT", 1, status=409))
    assert (a.try_acquire(), b.try_acquire()) == (False, True)
    assert (a.is_held, b.is_held) == (False, True)


def test_released_lease_is_free_at_once(world: World) -> None:
    """The next process need not wait."""
    clock = Clock()
    first, second = lease_of(world, "a", clock), lease_of(world, "b", clock)
    first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert (first.is_held, second.try_acquire()) == (False, True)
    first.release()  # it is another's by now
    assert _holder(world) == "b"


def test_lease_taken_by_another_is_not_released(world: World) -> None:
    """Not even if this process has not noticed yet."""
    lease = lease_of(world, "a", Clock())
    lease.try_acquire()
    world.api.patch("Lease", OWN, LEASE_NAME, {"spec": {"holderIdentity": "b"}})
    lease.release()
    assert _holder(world) == "b"


def _keeper(lease: Lease, sleep: Callable[[float], None], told: list[str]) -> LeaderElector:
    return LeaderElector(lease, is_optional=False, report=told.append, sleep=sleep)


def test_leader_election_with_an_active_holder_fails(world: World) -> None:
    """The holder keeps the Lease; the messages name it."""
    clock, told = Clock(), list[str]()
    other = lease_of(world, "the-deployment", clock)
    other.try_acquire()

    def sleep(seconds: float) -> None:
        clock.now += seconds
        other.try_acquire()

    with (
        pytest.raises(ConfigurationError, match="the-deployment is active"),
        _keeper(lease_of(world, "me", clock), sleep, told),
    ):
        pytest.fail("entered")
    assert told == [
        f"the-deployment holds the Lease {LEASE_NAME}; waiting up to {LEASE_DURATION_S} s for it to expire"
    ]
    assert _holder(world) == "the-deployment"


@pytest.mark.parametrize(("says_s", "lasts_s"), [(LEASE_DURATION_S, LEASE_DURATION_S), (3, 3), (10**9, 60)])
def test_leader_election_waits_for_a_dead_holder(world: World, says_s: int, lasts_s: int) -> None:
    """For the duration in the Lease, at most a minute."""
    clock, told = Clock(), list[str]()
    lease_of(world, "killed", clock, year=2040).try_acquire()
    world.api.patch("Lease", OWN, LEASE_NAME, {"spec": {"leaseDurationSeconds": says_s}})
    began = clock.now

    def sleep(seconds: float) -> None:
        clock.now += seconds
        assert _holder(world) == "killed"

    with _keeper(lease_of(world, "me", clock), sleep, told):
        assert _holder(world) == "me"
    assert lasts_s < clock.now - began < lasts_s + 1
    assert told[-1] == f"killed did not renew the Lease {LEASE_NAME}; this instance holds it now"


def test_lease_in_a_missing_namespace_is_refused(world: World) -> None:
    """With the API server's message."""
    with pytest.raises(RequestRefused, match="not found"):
        lease_of(world, "a", Clock(), namespace="nowhere").try_acquire()
