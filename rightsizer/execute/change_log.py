"""Logs each change of a workload: before it, after it, and its effect once that is verified.

The messages are for people; with `--log-format json` each line has the fields, too.
"""

import logging

from rightsizer.model import ObjectRef, Outcome
from rightsizer.report.outcomes import effect_text, intent_text, outcome_text, outcome_words
from rightsizer.text import tidy

log = logging.getLogger("gpu-rightsizer")


def log_intent(
    run: str, ref: ObjectRef, action: str, reason: str, *, rule: str = "", gpus: float = 0
) -> None:
    """Log what is about to be changed, and why."""
    fields = _fields("intent", run, ref, action, reason, gpus)
    log.info("%s", intent_text(ref, action, reason), extra={"change": {**fields, "rule": rule}})


def logged(outcome: Outcome, run: str) -> Outcome:
    """The same outcome, once it is logged with its effect, if that is verified."""
    step = "effect" if outcome.effect else "outcome"
    fields = _fields(step, run, outcome.ref, outcome.action, outcome_words(outcome), outcome.gpus)
    words = effect_text(outcome, colour=False) or outcome_text(outcome, colour=False)
    log.info("%s", words, extra={"change": {**fields, "result": outcome.result.value}})
    return outcome


def _fields(step: str, run: str, ref: ObjectRef, action: str, reason: str, gpus: float) -> dict[str, object]:
    where = {"namespace": ref.namespace, "kind": ref.kind, "name": ref.name, "uid": ref.uid}
    return {"step": step, "run": run, **where, "action": action, "reason": reason, "gpus": tidy(gpus)}
