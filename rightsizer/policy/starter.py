"""A commented starting policy for a cluster's own PriorityClasses, which changes nothing by itself. Pure."""

import json
import re
from collections.abc import Iterable, Iterator

import yaml

from rightsizer.model import PriorityClass
from rightsizer.policy.protections import SYSTEM_PRIORITY
from rightsizer.policy.schema import API_VERSION

_IMPORTANT = re.compile(
    r"(?<![a-z])(high|highest|critical|prod|production|urgent|important|system|never)(?![a-z])"
)
"""Words of a name that ask for protection; 'high' in 'high-priority', not in 'highway'."""

_LONGEST_NAME = 63

_HEAD = f"""\
# A starting policy for the PriorityClasses of this cluster. It changes nothing: workloads that it does not protect are
# only advised on. Watch `gpu-rightsizer plan --policy FILE` for some days, then enforce what has proven right.
# All fields: docs/policy.md. After each change: gpu-rightsizer policy check FILE
apiVersion: {API_VERSION}
kind: Policy

# Limits of changes. These are the defaults; raise them once you trust the plan.
budgets:
  - {{scope: cluster, per: run, workloads: 5}}
  - {{scope: namespace, per: run, workloads: 2}}
  - {{scope: cluster, per: hour, workloads: 20, share: 10%}}
  - {{scope: owner, per: day, workloads: 1}}

# When changes may be made; without windows always. Freezes are days without changes.
# maintenanceWindows:
#   - {{days: [mon-fri], from: "09:00", to: "17:00", zone: Europe/Berlin}}
# freezes:
#   - {{from: 2026-12-20, to: 2027-01-06, zone: Europe/Berlin, reason: year's end}}

# Annotations of PriorityClasses (gpu-rightsizer.io/mode and others) can make rules, too. They count after the rules of
# this file (file-first), before them (class-first), or not at all ('off').
classAnnotations: 'off'

# The first matching rule applies.
rules:
"""

_PROTECTED = """\
  # Value {value}: never touched.
  - name: {name}
    match: {{priorityClasses: [{pattern}]}}
    mode: protect
"""

_ADVISED = """\
  # Value {value}: shown in plans, not touched. To act on idle workloads, replace mode: advise by the lines below.
  - name: {name}
    match: {{priorityClasses: [{pattern}]}}
    mode: advise
    # mode: enforce
    # actions: [scale-to-zero, suspend]   # evict destroys bare pods: list it only if you want that
    # notifyBefore: 24h
"""

_WITHOUT = """\
  # Pods without a PriorityClass.
  - name: without-class
    match: {priorityClasses: [""]}
    mode: advise
"""


def starting_policy(classes: Iterable[PriorityClass]) -> str:
    """The text of a policy file; protects what is called important, and the highest class where there are several."""
    own = sorted(
        (item for item in classes if not item.name.startswith("system-") and item.value <= SYSTEM_PRIORITY),
        key=lambda item: (-item.value, item.name),
    )
    return _HEAD + "\n".join([*_rules(own), _WITHOUT])


def _rules(own: list[PriorityClass]) -> Iterator[str]:
    names: set[str] = {"without-class"}
    for number, item in enumerate(own):
        is_highest = number == 0 and len({other.value for other in own}) > 1
        template = _PROTECTED if is_highest or _IMPORTANT.search(item.name) else _ADVISED
        yield template.format(
            value=item.value, name=_quoted(_title(item.name, names)), pattern=_quoted(item.name)
        )


def _title(name: str, taken: set[str]) -> str:
    """A name for its rule: as its own as it can be."""
    title = re.sub(r"[^A-Za-z0-9]+$", "", name[:_LONGEST_NAME])
    number = 2
    while title in taken:
        suffix = f"-{number}"
        title, number = title[: _LONGEST_NAME - len(suffix)] + suffix, number + 1
    taken.add(title)
    return title


def _quoted(name: str) -> str:
    """In quotes where YAML would take it for something else than this text."""
    return (
        name if yaml.safe_load(name) == name and re.fullmatch(r"[-A-Za-z0-9_.]+", name) else json.dumps(name)
    )
