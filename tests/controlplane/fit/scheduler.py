"""The answers of kube-scheduler's own plugins, from a process of main.go."""

import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

Object = dict[str, Any]


class Question(NamedTuple):
    """What to ask of one cluster.

    Attributes:
        pod: Namespace and name of the pending pod.
        is_first: Whether to check the objects, return them with their defaults, and offer victims.
    """

    objects: Sequence[Object]
    pod: str
    is_first: bool = False


class Verdict(NamedTuple):
    """What the plugins say.

    Attributes:
        nodes: The reasons against each node; none where the pod fits.
        message: Of the pod's condition PodScheduled; empty if it fits.
        reason: Of the same.
        victims: By node, UIDs of what the scheduler would preempt.
        objects: With the defaults of the API server.
    """

    nodes: dict[str, list[str]]
    message: str
    reason: str
    victims: dict[str, Object]
    objects: list[Object]


class Scheduler:
    """While entered, a process that answers."""

    def __init__(self, program: Path, features: str = "") -> None:
        self._command = [str(program), f"-feature-gates={features}"]

    def __enter__(self) -> Self:
        """Start it."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def ask(self, questions: Iterable[Question]) -> list[Verdict]:
        """The verdicts, in the order of the questions.

        Raises:
            ValueError: An object is invalid, or a plugin fails.
        """
        asked = list(questions)
        assert self._process.stdout is not None
        sending = threading.Thread(target=self._send, args=(asked,))
        sending.start()
        answers: dict[int, Object] = {}
        for _ in asked:
            answer = msgspec.json.decode(self._process.stdout.readline())
            answers[answer["id"]] = answer
        sending.join()
        return [_verdict(answers[number], one) for number, one in enumerate(asked)]

    def _send(self, asked: Sequence[Question]) -> None:
        assert self._process.stdin is not None
        for number, one in enumerate(asked):
            line = {
                "id": number,
                "objects": one.objects,
                "pod": one.pod,
                "echo": one.is_first,
                "preempt": one.is_first,
            }
            self._process.stdin.write(msgspec.json.encode(line) + b"\n")
        self._process.stdin.flush()


def _verdict(answer: Object, asked: Question) -> Verdict:
    if error := answer.get("error"):
        raise ValueError(f"{error[:2000]} ({asked.pod})")
    return Verdict(
        answer["nodes"],
        answer["message"],
        answer["reason"],
        answer.get("victims", {}),
        answer.get("objects", []),
    )
