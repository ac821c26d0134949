"""Devices of a node for ResourceClaims: as many as asked for, each once, within counters and constraints."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence

import hypothesis
import hypothesis.strategies as st

from rightsizer.inventory.device_allocation import MAX_OF_POD, MAX_TRIES, Tries
from rightsizer.inventory.device_allocation import allocate as allocate_within
from rightsizer.model import (
    MAX_OF_CLAIM,
    AttributeConstraint,
    CounterSet,
    DeviceChoice,
    DeviceId,
    DeviceInventory,
    DeviceRequest,
    DraDevice,
    Holding,
    WaitingClaim,
)

SLICES = 4
"""Memory slices of a GPU of these tests."""


def allocate(
    claims: Sequence[WaitingClaim], inventory: DeviceInventory, node: str, held: Collection[DeviceId]
) -> tuple[DeviceId, ...] | None:
    """Whole devices, with as many tries as are needed."""
    found = allocate_within(claims, inventory, node, {one: [Holding(one)] for one in held}, Tries())
    return None if found is None else tuple(one.id for one in found)


def _id(name: str) -> DeviceId:
    return DeviceId("gpu.nvidia.com", "n1", name)


def _gpu(number: int) -> DraDevice:
    whole = {"slices": SLICES}
    return DraDevice(
        _id(f"gpu-{number}"), "n1", f"bus-{number}", "H100", consumes=((f"set-{number}", whole),)
    )


def _mig(number: int, place: int, size: int = 1) -> DraDevice:
    name = _id(f"gpu-{number}-mig-{size}-{place}")
    consumes = ((f"set-{number}", {"slices": size}),)
    return DraDevice(name, "n1", f"bus-{number}", "H100", profile=f"{size}g.10gb", consumes=consumes)


def _inventory(*devices: DraDevice) -> DeviceInventory:
    sets = {name for one in devices for name, _ in one.consumes}
    counters = {CounterSet("gpu.nvidia.com", "n1", name): {"slices": SLICES} for name in sets}
    return DeviceInventory({"n1": devices}, counters)


def _claim(*devices: DraDevice, count: int | None = 1, **constraint: object) -> WaitingClaim:
    choice = DeviceChoice(frozenset(one.id for one in devices), count)
    values = {_id(name): value for name, value in constraint.items()}
    equal = (AttributeConstraint(frozenset({"r"}), values),) if constraint else ()
    return WaitingClaim((DeviceRequest("r", (choice,)),), equal)


A, B, C = _gpu(0), _gpu(1), _gpu(2)
PARTS = tuple(_mig(0, place) for place in range(SLICES))


def test_claim_gets_devices_that_nobody_holds() -> None:
    """As many as it asks for, or none."""
    inventory = _inventory(A, B, C)
    assert allocate([_claim(A, B, C, count=2)], inventory, "n1", {A.id}) == (B.id, C.id)
    assert allocate([_claim(A, B, C, count=2)], inventory, "n1", {A.id, B.id}) is None
    assert allocate([_claim(A, B, C, count=2)], inventory, "elsewhere", ()) is None


def test_claims_of_one_pod_share_no_device() -> None:
    """Also where the first could take what only the second accepts."""
    inventory = _inventory(A, B)
    found = allocate([_claim(A, B), _claim(A)], inventory, "n1", ())
    assert found == (B.id, A.id)


def test_all_devices_of_a_node_must_be_free() -> None:
    """Allocation mode All takes them all."""
    inventory = _inventory(A, B)
    assert allocate([_claim(A, B, count=None)], inventory, "n1", ()) == (A.id, B.id)
    assert allocate([_claim(A, B, count=None)], inventory, "n1", {B.id}) is None
    assert allocate([_claim(count=None)], inventory, "n1", ()) is None


def test_gpu_and_its_mig_devices_exclude_each_other() -> None:
    """By the counters; and also where a driver publishes none."""
    inventory = _inventory(A, *PARTS)
    assert allocate([_claim(A)], inventory, "n1", {PARTS[2].id}) is None
    assert allocate([_claim(*PARTS)], inventory, "n1", {A.id}) is None
    assert allocate([_claim(*PARTS, count=3)], inventory, "n1", {PARTS[0].id}) == tuple(
        one.id for one in PARTS[1:]
    )
    plain = DeviceInventory({"n1": (A, *PARTS)})
    assert allocate([_claim(A)], plain, "n1", {PARTS[2].id}) is None
    uncounted = [dataclasses.replace(one, consumes=()) for one in PARTS[:2]]
    plain = DeviceInventory({"n1": tuple(uncounted)})
    assert allocate([_claim(*uncounted)], plain, "n1", {PARTS[0].id}) == (PARTS[1].id,)


def test_mig_devices_fit_as_long_as_the_counters_suffice() -> None:
    """Two of two slices each and then none."""
    halves = tuple(_mig(0, place, size=2) for place in (0, 1, 2))
    inventory = _inventory(*halves)
    assert allocate([_claim(*halves, count=2)], inventory, "n1", ()) is not None
    assert allocate([_claim(*halves, count=3)], inventory, "n1", ()) is None


def test_devices_of_a_constraint_have_one_value() -> None:
    """A device without the attribute is out."""
    inventory = _inventory(A, B, C)
    roots = {"gpu-0": "pci0", "gpu-1": "pci1", "gpu-2": "pci1"}
    assert allocate([_claim(A, B, C, count=2, **roots)], inventory, "n1", ()) == (B.id, C.id)
    assert allocate([_claim(A, B, C, count=2, **roots)], inventory, "n1", {C.id}) is None
    del roots["gpu-2"]
    assert allocate([_claim(A, B, C, count=2, **roots)], inventory, "n1", ()) is None


def test_devices_of_a_distinct_constraint_have_different_values() -> None:
    """A device without the attribute is out, here as well."""
    inventory = _inventory(A, B, C)
    roots = {_id("gpu-0"): "pci0", _id("gpu-1"): "pci0", _id("gpu-2"): "pci1"}
    claim = dataclasses.replace(
        _claim(A, B, C, count=2),
        constraints=(AttributeConstraint(frozenset({"r"}), roots, is_distinct=True),),
    )
    assert allocate([claim], inventory, "n1", ()) == (A.id, C.id)
    assert allocate([claim], inventory, "n1", {C.id}) is None
    del roots[_id("gpu-2")]
    assert allocate([claim], inventory, "n1", ()) is None


def _shared(number: int) -> DraDevice:
    return dataclasses.replace(_gpu(number), capacity={"memory": 80, "cores": 100})


def _parts(*devices: DraDevice, count: int = 1, **consumes: int) -> WaitingClaim:
    ids = frozenset(one.id for one in devices)
    return WaitingClaim((DeviceRequest("r", (DeviceChoice(ids, count, dict.fromkeys(ids, consumes)),)),))


def _part(device: DraDevice, share: str, **consumed: int) -> Holding:
    return Holding(device.id, share, tuple(sorted(consumed.items())))


def test_parts_of_a_device_fit_as_long_as_its_capacity_suffices() -> None:
    """Of each of its capacities; and of several parts each has its own name."""
    one = _shared(0)
    inventory = _inventory(one)
    held = {one.id: [_part(one, "0", memory=30, cores=10)]}
    wanted = [_parts(one, memory=25), _parts(one, memory=25)]
    found = allocate_within(wanted, inventory, "n1", held, Tries())
    assert found is not None
    assert [(part.id, part.consumed) for part in found] == [(one.id, (("memory", 25),))] * 2
    assert len({part.share for part in (*found, *held[one.id])}) == 3
    assert allocate_within([*wanted, _parts(one, memory=1)], inventory, "n1", held, Tries()) is None
    assert allocate_within([_parts(one, cores=91)], inventory, "n1", held, Tries()) is None
    freed = allocate_within([_parts(one, cores=91)], inventory, "n1", held, Tries(), freed=held[one.id])
    assert freed == (_part(one, "0", cores=91),)


def test_request_for_several_parts_has_them_of_different_devices() -> None:
    """As the scheduler's allocator does; another request of the claim may have the next part of the same one."""
    one, two = _shared(0), _shared(1)
    inventory = _inventory(one, two)
    assert allocate_within([_parts(one, two, count=3, memory=10)], inventory, "n1", {}, Tries()) is None
    (request,) = _parts(one, two, count=2, memory=40).requests
    found = allocate_within([WaitingClaim((request, request))], inventory, "n1", {}, Tries())
    assert found is not None
    assert [part.id for part in found] == [one.id, two.id] * 2
    whole = {one.id: [Holding(one.id)]}
    assert allocate_within([_parts(one, memory=10)], inventory, "n1", whole, Tries()) is None


def test_pod_that_asks_for_more_than_the_scheduler_would_give_finds_nothing() -> None:
    """However many parts would fit: a tenant writes any number, and the search must end."""
    one = dataclasses.replace(_shared(0), capacity={"memory": 1_000_000})
    inventory = _inventory(one)
    (request,) = _parts(one, memory=1).requests
    large = dataclasses.replace(
        request, choices=(*request.choices, DeviceChoice(frozenset(), MAX_OF_CLAIM + 1))
    )
    for claims in ([WaitingClaim((request,) * MAX_OF_CLAIM)], [_parts(one, memory=1)] * MAX_OF_POD):
        assert allocate_within(claims, inventory, "n1", {}, Tries()) is not None
    for claims in (
        [WaitingClaim((request,) * (MAX_OF_CLAIM + 1))],
        [WaitingClaim((large,))],
        [_parts(one, count=100_000, memory=1)],
        [_parts(one, memory=1)] * (MAX_OF_POD + 1),
        [_parts(one, memory=1)] * 5_000,
    ):
        assert allocate_within(claims, inventory, "n1", {}, Tries()) is None
    many = tuple(_gpu(number) for number in range(MAX_OF_CLAIM + 1))
    assert allocate_within([_claim(*many, count=None)], _inventory(*many), "n1", {}, Tries()) is None


def test_device_with_parts_and_another_of_its_gpu_exclude_each_other() -> None:
    """Its counters are taken once, with the first part, and are free after the last one."""
    one = _shared(0)
    inventory = _inventory(one, *PARTS)
    held = {one.id: [_part(one, "a", memory=1), _part(one, "b", memory=1)]}
    assert allocate_within([_claim(*PARTS)], inventory, "n1", held, Tries()) is None
    assert allocate_within([_claim(*PARTS)], inventory, "n1", held, Tries(), freed=held[one.id][:1]) is None
    assert allocate_within([_claim(*PARTS)], inventory, "n1", held, Tries(), freed=held[one.id]) is not None
    mig = {PARTS[0].id: [Holding(PARTS[0].id)]}
    assert allocate_within([_parts(one, memory=1)], inventory, "n1", mig, Tries()) is None


def test_first_choice_that_fits_is_taken() -> None:
    """Prioritized alternatives."""
    first, second = DeviceChoice(frozenset({A.id})), DeviceChoice(frozenset({B.id, C.id}), 2)
    claim = WaitingClaim((DeviceRequest("r", (first, second)),))
    assert allocate([claim], _inventory(A, B, C), "n1", ()) == (A.id,)
    assert allocate([claim], _inventory(A, B, C), "n1", {A.id}) == (B.id, C.id)


def test_devices_of_a_constraint_are_not_searched_in_every_combination() -> None:
    """Forty GPUs, of which no two have one value: each first device ends with the next ones."""
    gpus = tuple(_gpu(number) for number in range(40))
    values = {f"gpu-{number}": number for number in range(40)}
    tries = Tries()
    assert allocate_within([_claim(*gpus, count=8, **values)], _inventory(*gpus), "n1", {}, tries) is None
    assert Tries().left - tries.left < 40 * 40


def test_search_without_end_finds_nothing_and_its_tries_are_counted() -> None:
    """Requests before those of a constraint that nothing satisfies: a tenant writes them."""
    gpus = tuple(_gpu(number) for number in range(40))
    values = {_id(f"gpu-{number}"): number for number in range(40)}
    choices = (DeviceChoice(frozenset(one.id for one in gpus), 1),)
    requests = tuple(DeviceRequest(name, choices) for name in "abcdef")
    claim = WaitingClaim(requests, (AttributeConstraint(frozenset({"e", "f"}), values),))
    tries = Tries(30_000)
    assert allocate_within([claim], _inventory(*gpus), "n1", {}, tries) is None
    assert tries.left == 30_000 - MAX_TRIES - 1
    assert allocate_within([claim], _inventory(*gpus), "n1", {}, tries) is None
    assert tries.left < 0
    assert allocate_within([_claim(A)], _inventory(A), "n1", {}, tries) is None


def test_device_of_a_pool_that_is_overdrawn_is_not_given() -> None:
    """Claims hold more of its counters than there is: the allocator gives no device that consumes any."""
    inventory = _inventory(A, B, *PARTS)
    assert allocate([_claim(B)], inventory, "n1", {A.id}) is not None
    assert allocate([_claim(B)], inventory, "n1", {A.id, PARTS[0].id}) is None


DEVICES = (*(_gpu(number) for number in range(3)), *(_mig(0, place) for place in range(2)))


@st.composite
def _claims(draw: st.DrawFn) -> list[WaitingClaim]:
    subsets = st.lists(st.sampled_from(DEVICES), min_size=1, unique=True)
    return [_claim(*draw(subsets), count=draw(st.integers(1, 2))) for _ in range(draw(st.integers(1, 3)))]


def _is_allowed(chosen: tuple[DraDevice, ...], held: tuple[DraDevice, ...]) -> bool:
    used = (*chosen, *held)
    slices = [sum(a["slices"] for one in used for n, a in one.consumes if n == f"set-{g}") for g in range(3)]
    return len(set(used)) == len(used) and max(slices) <= SLICES


@hypothesis.given(_claims(), st.lists(st.sampled_from(DEVICES), unique=True, max_size=3))
def test_claims_fit_exactly_if_some_choice_of_devices_does(
    claims: list[WaitingClaim], taken: list[DraDevice]
) -> None:
    """Compared with every choice; what is found is one of them."""
    held = tuple(taken)
    hypothesis.assume(_is_allowed((), held))
    options = [
        [
            chosen
            for chosen in itertools.combinations(DEVICES, claim.requests[0].choices[0].count or 1)
            if {one.id for one in chosen} <= claim.requests[0].choices[0].eligible
        ]
        for claim in claims
    ]
    allowed = [
        tuple(one.id for chosen in every for one in chosen)
        for every in itertools.product(*options)
        if _is_allowed(tuple(itertools.chain.from_iterable(every)), held)
    ]
    found = allocate(claims, _inventory(*DEVICES), "n1", {one.id for one in held})
    assert found in allowed if allowed else found is None
