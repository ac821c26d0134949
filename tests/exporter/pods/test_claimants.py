"""Which of several claimants of one device id has it, answer by answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Allocation, Claim, PodRef
from exporter.pods.claimants import ClaimantHistory, settle

GPU = "GPU-8f7c9b1e-1111-2222-3333-444455556666"
CLAIM = Claim("c", "ml", "gpu.nvidia.com", "node", "gpu-0")


def _has(pod: str, device_id: str = GPU, resource: str = "nvidia.com/gpu") -> Allocation:
    return Allocation(PodRef("ml", pod, "main"), resource, device_id)


def _claims(pod: str) -> Allocation:
    return Allocation(PodRef("ml", pod, "main", CLAIM), CLAIM.driver, CLAIM.device)


def _after(answers: list[str], ended: dict[str, bool] | None = None) -> tuple[list[str], int]:
    """The holder of the device and the number of disputed devices; each letter of an answer is a claimant."""
    history = ClaimantHistory()
    has_ended = {("ml", pod): value for pod, value in (ended or {}).items()}
    for answer in answers:
        settled, history = settle([_has(pod) for pod in answer], history, has_ended)
    return [allocation.owner.pod for allocation in settled.allocations], len(settled.disputed)


@pytest.mark.parametrize(
    ("answers", "holders", "disputed"),
    [
        pytest.param(["a"], ["a"], 0, id="one"),
        pytest.param(["a", "ab"], ["b"], 0, id="the-newer-one"),
        pytest.param(["a", "ba"], ["b"], 0, id="order-means-nothing"),
        pytest.param(["a", "ab", "ab", "ab"], ["b"], 0, id="and-keeps-it"),
        pytest.param(["ab"], [], 1, id="both-at-once-at-the-start"),
        pytest.param(["", "ab"], [], 1, id="both-within-one-interval"),
        pytest.param(["ab", "ab"], [], 1, id="time-does-not-settle-it"),
        pytest.param(["ab", "abc"], ["c"], 0, id="a-third-settles-it"),
        pytest.param(["ab", "b"], ["b"], 0, id="one-of-them-leaves"),
        pytest.param(["a", "ab", "a"], [], 0, id="the-ended-one-does-not-get-it-back"),
        pytest.param(["a", "ab", "a", "", "a"], ["a"], 0, id="unless-it-was-away-and-is-another-one"),
        pytest.param(["a", "ab", "a", "ac"], ["c"], 0, id="a-later-one-gets-it"),
        pytest.param(["a", "abc"], [], 1, id="two-new-ones"),
        pytest.param(["a", "aa"], ["a", "a"], 0, id="two-containers-of-one-pod"),
    ],
)
def test_newest_claimant_holds_the_device(answers: list[str], holders: list[str], disputed: int) -> None:
    """The newest claimant has the device; claimants of the same answer are indistinguishable and not named."""
    assert _after(answers) == (holders, disputed)


@pytest.mark.parametrize(
    ("answers", "ended", "holders", "disputed"),
    [
        pytest.param(["ab"], {"a": True, "b": False}, ["b"], 0, id="phases-settle-it"),
        pytest.param(["ab"], {"a": True}, ["b"], 0, id="one-phase-is-enough"),
        pytest.param(["a"], {"a": True}, [], 0, id="nobody-has-it"),
        pytest.param(["ab"], {"a": True, "b": True}, [], 0, id="both-have-ended"),
        pytest.param(["ab"], {"a": False, "b": False}, [], 1, id="phases-may-lag"),
        pytest.param(["a", "ab"], {"a": False, "b": False}, ["b"], 0, id="the-newest-while-phases-lag"),
        pytest.param(["a", "ab", "a"], {"a": False}, ["a"], 0, id="another-one-of-the-name"),
    ],
)
def test_known_phases_decide_between_claimants(
    answers: list[str], ended: dict[str, bool], holders: list[str], disputed: int
) -> None:
    """A pod that has ended by the API server has nothing; one that lives can have lost it to a newer one only."""
    assert _after(answers, ended) == (holders, disputed)


def test_replicas_are_held_by_several_pods() -> None:
    """Different replicas of a GPU are different ids: no pod loses its own to another's."""
    shared = [_has("a", f"{GPU}::0"), _has("b", f"{GPU}::1")]
    settled, _ = settle(shared, ClaimantHistory(), {})
    assert (settled.allocations, settled.disputed) == (tuple(shared), frozenset())


def test_one_replica_has_one_holder() -> None:
    """The same replica in two pods at once means what a whole GPU in two pods means."""
    _, history = settle([_has("a", f"{GPU}::0")], ClaimantHistory(), {})
    settled, _ = settle([_has("a", f"{GPU}::0"), _has("b", f"{GPU}::0")], history, {})
    assert [one.owner.pod for one in settled.allocations] == ["b"]


def test_resource_claims_are_held_by_several_pods() -> None:
    """Pods that share a claim all hold its device, but for those that have ended by the API server."""
    both = [_claims("a"), _claims("b")]
    assert settle(both, ClaimantHistory(), {})[0].allocations == tuple(both)
    assert settle(both, ClaimantHistory(), {("ml", "a"): True})[0].allocations == (_claims("b"),)


pods = st.sampled_from("abcd")
answers = st.lists(st.lists(st.tuples(pods, st.sampled_from("xy")), max_size=6), max_size=6)


@given(answers, st.dictionaries(pods, st.booleans()))
def test_device_never_has_two_or_invented_holders(
    listed: list[list[tuple[str, str]]], ended: dict[str, bool]
) -> None:
    """An id has at most one pod, listed with it and not ended; asking twice is asking once; memory does not grow."""
    history = ClaimantHistory()
    has_ended = {("ml", pod): value for pod, value in ended.items()}
    for answer in listed:
        allocations = [_has(pod, device) for pod, device in answer]
        settled, history = settle(allocations, history, has_ended)
        again, history = settle(allocations, history, has_ended)
        assert again == settled
        assert set(settled.allocations) <= set(allocations)
        assert not any(ended.get(one.owner.pod) for one in settled.allocations)
        for _, device in {(one.resource, one.device_id) for one in allocations}:
            assert len({one.owner.pod for one in settled.allocations if one.device_id == device}) <= 1
        assert set(history.claimants) == {(one.resource, one.device_id) for one in allocations}


@given(st.lists(st.sets(pods, min_size=1, max_size=1), min_size=1, max_size=6))
def test_unrivalled_pods_are_kept(listed: list[set[str]]) -> None:
    """A lone claimant has the device, unless it has lost it in an answer since which it was always there."""
    assert _after(["".join(answer) for answer in listed]) == (list(listed[-1]), 0)
