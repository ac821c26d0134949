"""Checks of what our account may do at the API server, told apart by command. Pure."""

import functools
from collections.abc import Iterable, Iterator

from rightsizer.doctor.diagnosis import Check, Diagnosis, Family, Message, Status, known, some
from rightsizer.doctor.facts import Facts, Failure
from rightsizer.doctor.rights import RIGHTS, Command, Right, needed

_BIND = (
    "grant ClusterRole gpu-rightsizer-{command} and bind it: kubectl create clusterrolebinding "
    "gpu-rightsizer-{command} "
    "--clusterrole gpu-rightsizer-{command} --user NAME"
)
_ROLE = "; also bind the Role of that name in namespace {own}"
_GRANT = "gpu-rightsizer doctor --roles | kubectl apply -f -"

ALLOWED = Message(Status.OK, "all {count} required rights are granted")
MAY_NOT_READ = Message(Status.ERROR, "plan fails: not allowed to {missing}", _BIND, _GRANT)
MAY_NOT_LOOK = Message(
    Status.WARNING,
    "plan cannot find Prometheus by itself: not allowed to {missing}",
    "set --prometheus-url, or " + _BIND,
    _GRANT,
)
MAY_NOT_CHANGE = Message(
    Status.WARNING, "apply fails: not allowed to {missing}; plan is not affected", _BIND + _ROLE, _GRANT
)
MAY_NOT_RESTORE = Message(
    Status.WARNING, "undo fails: not allowed to {missing}; plan is not affected", _BIND + _ROLE, _GRANT
)
NOT_TOLD = Message(
    Status.UNKNOWN,
    "unknown: {why}",
    "if Forbidden: grant the account create on selfsubjectaccessreviews, as the ClusterRole system:basic-user does",
    "kubectl auth can-i create selfsubjectaccessreviews.authorization.k8s.io",
)
DOES_WITHOUT = Message(
    Status.WARNING, "{command} is limited, because it is not allowed to {missing}: {cost}", _BIND, _GRANT
)
"""Beside what a command cannot do without; told apart by what is lost."""


def _may(facts: Facts, *, command: Command, refusal: Message) -> Iterator[Diagnosis]:
    allowed = facts.allowed
    if isinstance(allowed, Failure) and not allowed.told:
        yield NOT_TOLD(why=allowed.words)
        return
    allowed = known(allowed)
    is_spared = command is Command.PLAN and not facts.evicts  # who evicts nothing looks for no manifests
    rights = [one for one in needed(allowed, command) if not (is_spared and one.resource == "secrets")]
    missing = [right for right in rights if not allowed[right]]
    told = {"command": command.value, "own": facts.own}
    fatal = [right for right in missing if not right.cost]
    if fatal:
        yield refusal(**told, missing=_words(fatal))
    dear = [right for right in missing if right.cost]
    if dear:
        costs = dict.fromkeys(right.cost for right in dear)
        yield DOES_WITHOUT(**told, missing=_words(dear), cost=some(costs, 2))
    if not missing:
        yield ALLOWED(**told, count=len(rights))


def _words(rights: Iterable[Right]) -> str:
    """Verbs and what they are about, such as "list pods, nodes; get jobs.batch"."""
    by_verb: dict[str, list[str]] = {}
    for right in rights:
        by_verb.setdefault(right.verb, []).append(right.named)
    return "; ".join(f"{verb} {some(names, 4)}" for verb, names in by_verb.items())


def _check(command: Command, about: str, refusal: Message) -> Check:
    judge = functools.partial(_may, command=command, refusal=refusal)
    dear = (DOES_WITHOUT,) if any(right.cost for right in needed(RIGHTS, command)) else ()
    return Check(command.value, about, judge, (ALLOWED, refusal, NOT_TOLD, *dear))


FAMILY = Family(
    "permissions",
    (
        _check(Command.PLAN, "What `plan` reads.", MAY_NOT_READ),
        _check(Command.DISCOVERY, "What it reads to find a Prometheus.", MAY_NOT_LOOK),
        _check(Command.APPLY, "What `apply` reads and writes.", MAY_NOT_CHANGE),
        _check(Command.UNDO, "What `undo` reads and writes.", MAY_NOT_RESTORE),
    ),
)
