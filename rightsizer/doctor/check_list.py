"""All checks in the order in which they are told: what a person mends first comes first. Pure."""

from collections.abc import Iterator

from rightsizer.doctor import (
    check_inventory,
    check_nodes,
    check_permissions,
    check_policy,
    check_server,
    check_signals,
)
from rightsizer.doctor.diagnosis import Check, Diagnosis, Family, NotKnown
from rightsizer.doctor.facts import Facts

FAMILIES: tuple[Family, ...] = (
    check_inventory.FAMILY,
    check_permissions.FAMILY,
    check_server.FAMILY,
    check_signals.FAMILY,
    check_nodes.FAMILY,
    check_policy.FAMILY,
)


def diagnose(facts: Facts) -> Iterator[tuple[Family, Check, Diagnosis]]:
    """What every check says."""
    for family in FAMILIES:
        for check in family.checks:
            for found in _judged(check, facts):
                yield family, check, found


def _judged(check: Check, facts: Facts) -> list[Diagnosis]:
    try:
        return list(check.judge(facts))
    except NotKnown as unknown:
        return [unknown.diagnosis]
