"""What docs/doctor.md says of checks, messages, and the rights of each command, from where they are defined."""

import re
from collections.abc import Iterator

from rightsizer.doctor.check_list import FAMILIES
from rightsizer.doctor.diagnosis import FAILED, FOLLOWS, Message
from rightsizer.doctor.rights import RIGHTS
from scripts.tables import table

_HOLE = re.compile(r"\{([a-z_]+)[^{}]*\}")


def checks() -> str:
    """Every message that each check can give, and what to do."""
    return "\n\n".join(_families())


def _families() -> Iterator[str]:
    for family in FAMILIES:
        rows = (
            (
                f"`{check.name}`",
                message.status.value,
                _text(message.says),
                _remedy(message),
            )
            for check in family.checks
            for message in check.messages
        )
        abouts = "\n".join(f"- `{check.name}`: {check.about}" for check in family.checks)
        yield f"### {family.name}\n\n{abouts}\n\n" + table(("check", "status", "says", "what to do"), rows)
    rows = (
        ("any", message.status.value, _text(message.says), _remedy(message)) for message in (FOLLOWS, FAILED)
    )
    yield "### What could not be asked\n\n" + table(("check", "status", "says", "what to do"), rows)


def _remedy(message: Message) -> str:
    words = _text(message.remedy)
    if not message.command:
        return words
    return f"{words.removesuffix(':')}: `{_text(message.command)}`"


def _text(words: str) -> str:
    """What is filled in, in capitals; a bar would end the cell."""
    filled = _HOLE.sub(lambda hole: "(" + hole[1] + ")" if hole[1] == "why" else hole[1].upper(), words)
    return filled.replace("|", "\\|")


def _listed(names: tuple[str, ...]) -> str:
    """Names; of numbered ones the first and the last."""
    by_stem: dict[str, list[str]] = {}
    for name in names:
        by_stem.setdefault(name.rstrip("0123456789"), []).append(name)
    return ", ".join(
        f"`{few[0]}` to `{few[-1].rpartition('-')[2]}`" if few[1:] else f"`{few[0]}`"
        for few in by_stem.values()
    )


def rights() -> str:
    """Each verb on each resource, by command."""
    rows: dict[tuple[str, str, str, str], set[str]] = {}
    for right in RIGHTS:
        where = "own namespace" if right.is_own else "all"
        where += f", {_listed(right.names)} alone" if right.names else ""
        rows.setdefault((right.named, where, ", ".join(right.commands), right.cost), set()).add(right.verb)
    return table(
        ("resource", "verbs", "where", "for", "without it"),
        (
            (f"`{named}`", ", ".join(sorted(verbs)), where, commands, cost or "it fails")
            for (named, where, commands, cost), verbs in rows.items()
        ),
    )
