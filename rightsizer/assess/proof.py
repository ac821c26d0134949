"""Why it is not proven that a pod never needs more than it was seen to use. Pure."""

from collections.abc import Iterator

from rightsizer.assess.doubts import INCOMPLETE, first_doubt
from rightsizer.assess.evidence import Evidence
from rightsizer.assess.rhythm import Rhythm, is_covered
from rightsizer.assess.words import span
from rightsizer.workloads.changes import original_replicas


def gaps_in_proof(evidence: Evidence, rhythm: Rhythm | None) -> Iterator[str]:
    """What stands against giving each pod less; nothing where that is proven.

    One that pauses for longer than the window may need what it has when it comes back.
    """
    doubt = first_doubt(evidence, INCOMPLETE)
    if doubt is not None:
        yield from doubt[1]
    if not is_covered(rhythm, evidence.case.criteria.idle, evidence.window):
        pause = f"pauses of up to {span(rhythm.longest_return_s)}" if rhythm else "pauses of unknown length"
        yield f"it makes {pause}: a window of {span(evidence.window)} is too short to say what it needs"
    if original_replicas(evidence.case.workload.annotations) is not None:
        yield "some of its replicas were taken away; it is judged anew when they are back"
