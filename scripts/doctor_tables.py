"""What docs/doctor.md says of checks, and of the rights of each command, from where they are defined."""

from collections import defaultdict
from collections.abc import Iterable

from rightsizer.doctor.examination import CHECKS
from rightsizer.doctor.rights import BUILT_IN, RIGHTS, Purpose, Right
from scripts.tables import table

_FEW = 5
_ELSEWHERE = {Purpose.DISCOVERY, Purpose.BACKTEST}
"""Commands whose few rights docs/prometheus.md and docs/backtest.md have."""
_COMMANDS = tuple(command for command in Purpose if command not in _ELSEWHERE)


def checks() -> str:
    """Each check, by family."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for check in CHECKS:
        found[check.family].append((f"`{check.name}`", check.about))
    return "\n".join(f"### {family}\n\n" + table(("check", "about"), rows) for family, rows in found.items())


def rights() -> str:
    """Verbs by resource and command; resources that need the same share a row."""
    by_resource: dict[tuple[str, bool], list[Right]] = defaultdict(list)
    for right in RIGHTS:
        if set(right.commands) <= _ELSEWHERE:
            continue
        by_resource[right.named, right.is_own].append(right)
    rows: dict[tuple[str, ...], list[Right]] = defaultdict(list)
    for found in by_resource.values():
        rows[*(_verbs(found, command) for command in _COMMANDS), _losses(found)].append(found[0])
    return table(
        ("resource", *(f"`{command}`" for command in _COMMANDS), "without it"),
        ((_resources(found), *cells) for cells, found in rows.items()),
    )


def _verbs(rights: Iterable[Right], command: Purpose) -> str:
    found = {f"{one.verb}\\*" if one.names else one.verb for one in rights if command in one.commands}
    return ", ".join(sorted(found))


def _losses(rights: Iterable[Right]) -> str:
    """What is lost, by verb where verbs differ; nothing where commands fail."""
    verbs: dict[str, set[str]] = defaultdict(set)
    for right in rights:
        verbs[right.cost].add(right.verb)
    costs = {cost: sorted(found) for cost, found in verbs.items() if cost}
    if len(verbs) == 1:
        return "".join(costs)
    return "; ".join(f"{', '.join(found)}: {cost}" for cost, found in costs.items())


def _resources(found: list[Right]) -> str:
    if len(found) >= _FEW and not any(right.group in BUILT_IN for right in found):
        return f"{len(found)} third-party kinds, such as `{found[0].named}`"
    return ", ".join(f"`{right.named}`{' (own)' if right.is_own else ''}" for right in found)
