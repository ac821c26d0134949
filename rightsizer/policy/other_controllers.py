"""What a policy says about workloads that something else decides about, too. Pure.

A further manager is a row in `observe.managers`; its word here is its kind in lower case with dashes.
"""

from collections.abc import Mapping
from typing import Final, Literal

from rightsizer.model import Action, Manager

Word = Literal["skip", "advise", "act"]

MANAGERS: Final = (
    "argo-cd",
    "field-manager",
    "flux",
    "helm",
    "horizontalpodautoscaler",
    "keda",
    "kueue",
    "verticalpodautoscaler",
)
"""Those that a policy may name."""


def word_on(manager: Manager, words: Mapping[str, Word], action: Action | None = None) -> Word:
    """How a workload of this manager is treated: skip, advise or act.

    Where the policy says nothing, what the manager would put back is only advised on: anything, or, of one that scales,
    another number of replicas.
    """
    name = manager.kind.lower().replace(" ", "-")
    is_fought = manager.reverts or (manager.scales and action in {Action.SCALE_DOWN, Action.SCALE_UP})
    return words.get(name) or ("advise" if is_fought else "act")
