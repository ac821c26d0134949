"""From the filter flags of plan and apply to the workloads that are shown or changed. Errors name flag and remedy."""

from rightsizer.cli.flags import FilterOptions
from rightsizer.errors import UsageError
from rightsizer.model import Plan
from rightsizer.report.selection import (
    InvalidSelectorError,
    Requirement,
    Selection,
    freed_words,
    parse_selector,
    selected,
)

_SHOWN = 5


def selection_of(arguments: FilterOptions) -> Selection:
    """What the flags choose.

    Raises:
        UsageError: A workload or a label selector is malformed.
    """
    for name in arguments.workloads:
        if len(name.split("/")) != len(("namespace", "kind", "name")) or not all(name.split("/")):
            raise UsageError(f"{name}: write NAMESPACE/KIND/NAME, such as research/Deployment/eval-server")
    given = {
        "namespace": arguments.namespace,
        "selector": arguments.selector,
        "verdict": arguments.verdict,
        "finding": arguments.finding,
        "class": arguments.priority_class,
        "owner": arguments.owner,
    }
    texts = [*arguments.workloads, *(f"{flag} {text}" for flag, values in given.items() for text in values)]
    return Selection(
        workloads=tuple(arguments.workloads),
        namespaces=tuple(arguments.namespace),
        labels=tuple(one for text in arguments.selector for one in _requirements(text)),
        verdicts=frozenset(arguments.verdict),
        findings=frozenset(arguments.finding),
        classes=tuple(arguments.priority_class),
        owners=tuple(arguments.owner),
        text=", ".join(texts),
    )


def _requirements(text: str) -> tuple[Requirement, ...]:
    try:
        return parse_selector(text)
    except InvalidSelectorError as error:
        raise UsageError(f'--selector "{text[:80]}": {error}') from error


def chosen_of(plan: Plan, selection: Selection) -> Plan:
    """The plan with only these workloads.

    Raises:
        UsageError: A workload that is named without wildcard is not there.
    """
    for name in selection.workloads:
        only = Selection(workloads=(name,))
        if "*" not in name and not any(only.admits(one.workload.ref) for one in plan.decisions):
            if words := freed_words(plan, name):
                raise UsageError(words)
            namespace = name.partition("/")[0]
            refs = [one.workload.ref for one in plan.decisions if one.workload.ref.namespace == namespace]
            hint = f"; there are {', '.join(map(str, refs[:_SHOWN]))}" if refs else ""
            raise UsageError(f"{name}: no such workload holds or waits for GPUs in {namespace}{hint}")
    return selected(plan, selection)
