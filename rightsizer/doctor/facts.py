"""What was asked, and what came of it: each fact on its own is there, or it is said why not. Pure."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from rightsizer.doctor.rights import Right
from rightsizer.model import Fleet, NodeCoverage, PodKey, Usages
from rightsizer.policy.policy_file import LoadedPolicy
from rightsizer.usage.source_metrics import MetricSource


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why something is not known, in one sentence.

    Attributes:
        told: What others say that need it, where a check of its own tells the words.
        is_unnamed: Of a Prometheus: none is named, and none, or more than one, was found.
    """

    words: str
    told: str = ""
    is_unnamed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A Prometheus that answers.

    Attributes:
        now: Its clock.
        ours: This machine's, half-way between the question and the answer.
        took_s: How long that took, in seconds.
        build: Its `buildinfo`.
        flags: Its command line.
    """

    where: str
    now: datetime.datetime
    ours: datetime.datetime
    took_s: float
    build: Mapping[str, Any] | Failure
    flags: Mapping[str, Any] | Failure


@dataclasses.dataclass(frozen=True, slots=True)
class Naming:
    """How series name pods and devices.

    Attributes:
        forms: Number of series that name a pod of ours, by the label that does.
        foreign: Pods that are named, and hold no GPU here.
        devices: Devices of ours by which some series is.
        jobs: Of devices that several series are about: which scrape jobs these are from; empty where none is.
        copies: How many such devices there are.
    """

    forms: Mapping[str, int]
    foreign: tuple[PodKey, ...]
    devices: int
    jobs: tuple[str, ...] = ()
    copies: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """What of our recording rules is on record.

    Attributes:
        expected: Rules that the source's metrics should have, as (record, metric).
        present: Those that have values now.
        early: Those that had some at the beginning of the longest window.
    """

    expected: frozenset[tuple[str, str]]
    present: frozenset[tuple[str, str]]
    early: frozenset[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is judged.

    Attributes:
        at: This machine's clock.
        host: The API server.
        own: The namespace in which we run.
        max_samples: What we take for the most that Prometheus loads for one query.
        policy: As it was read; the built-in one where none is given.
        source: The metrics that there are.
        interval_s: Seconds between two samples of the densest series.
        begins: Where Prometheus's record of GPUs begins; None where it goes back as far as the policy looks.
        usages: Of the last hour.
        evicts: Whether the policy lets pods be evicted; also where it cannot be read.
        allowed: Each right, and whether we have it.
    """

    at: datetime.datetime
    own: str
    max_samples: int
    host: str | Failure
    policy: LoadedPolicy | Failure
    evicts: bool
    fleet: Fleet | Failure
    allowed: Mapping[Right, bool] | Failure
    server: Server | Failure
    source: MetricSource | Failure
    interval_s: float | Failure
    begins: datetime.datetime | Failure | None
    naming: Naming | Failure
    recorded: Recorded | Failure
    usages: Usages | Failure
    node_coverage: Mapping[str, NodeCoverage] | Failure
