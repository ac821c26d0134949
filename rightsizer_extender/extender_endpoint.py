"""HTTP of the scheduler extender: POST /preempt and /prioritize, as kube-scheduler asks.

There is no /filter: kube-scheduler knows best where a pod fits, and nothing measured makes a node unfit.
https://github.com/kubernetes/kube-scheduler/blob/v0.36.3/extender/v1/types.go
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rightsizer.errors import INVALID_JSON
from rightsizer.kube.api_objects import PodObject
from rightsizer_extender.preemption import Preemptor, VictimChoice, Victims, preemptor_of
from rightsizer_extender.preemption_state import PreemptionState
from rightsizer_extender.question_server import InvalidBody

STALE = "stale"
"""Metric value in place of an Answer: what is known is too old."""
_NOT_CAPABLE = "set nodeCacheCapable: true in the KubeSchedulerConfiguration"


class _Pod(msgspec.Struct):
    """extenderv1.MetaPod."""

    uid: str = msgspec.field(name="UID")


class _Victims(msgspec.Struct):
    """extenderv1.MetaVictims."""

    pods: list[_Pod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _PreemptionArgs(msgspec.Struct):
    """extenderv1.ExtenderPreemptionArgs."""

    pod: PodObject = msgspec.field(name="Pod")
    victims: dict[str, _Victims | None] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")


class _Args(msgspec.Struct):
    """extenderv1.ExtenderArgs."""

    pod: PodObject = msgspec.field(name="Pod")
    nodes: list[str] | None = msgspec.field(default=None, name="NodeNames")


class _FilterResult(msgspec.Struct):
    """extenderv1.ExtenderPreemptionResult."""

    victims: dict[str, _Victims] = msgspec.field(name="NodeNameToMetaVictims")


class _HostPriority(msgspec.Struct):
    """extenderv1.HostPriority."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


_preemption_args = msgspec.json.Decoder(_PreemptionArgs)
_args = msgspec.json.Decoder(_Args)
_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True)
class Extender:
    """Answers the bodies of questions.

    Attributes:
        told: Is called with each answer: verb, pending pod, and what was chosen, or None if the state is stale.
    """

    state: PreemptionState
    told: Callable[[str, Preemptor, VictimChoice | None], None]

    @property
    def routes(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """Functions that answer requests, by path."""
        return {"/preempt": self.preempt, "/prioritize": self.prioritize}

    def preempt(self, body: bytes) -> bytes:
        """The victims by node.

        Raises:
            InvalidBody: It is no ExtenderPreemptionArgs with identifiers of pods.
        """
        args = _decoded(_preemption_args, body)
        if args.victims is None:
            raise InvalidBody(f"NodeNameToMetaVictims is missing; {_NOT_CAPABLE}")
        offered = {
            node: Victims(tuple(pod.uid for pod in victims.pods or ()), victims.violations)
            for node, victims in args.victims.items()
            if victims is not None
        }
        preemptor = preemptor_of(args.pod)
        choice = self.state.victims(preemptor, offered)
        self.told("preempt", preemptor, choice)
        answer = offered if choice is None else choice.victims
        return _encode(
            _FilterResult(
                {
                    node: _Victims([_Pod(uid) for uid in victims.uids], victims.violations)
                    for node, victims in answer.items()
                }
            )
        )

    def prioritize(self, body: bytes) -> bytes:
        """A score for each node.

        Raises:
            InvalidBody: It is no ExtenderArgs with names of nodes.
        """
        args = _decoded(_args, body)
        if args.nodes is None:
            raise InvalidBody(f"NodeNames is missing; {_NOT_CAPABLE}")
        scores = self.state.scores(preemptor_of(args.pod), args.nodes) or [0] * len(args.nodes)
        return _encode(list(map(_HostPriority, args.nodes, scores)))


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:  # noqa: ANN401 - as the decoder
    try:
        return decoder.decode(body)
    except INVALID_JSON as error:
        raise InvalidBody(f"cannot be read: {error}") from error
