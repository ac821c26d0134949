"""Lists resources that a cluster may not serve, or may not allow this account to read: notes what is missing."""

import http
from collections.abc import Callable, Sequence
from typing import TypeVar

from rightsizer.errors import RequestRefused
from rightsizer.kube.cluster import Cluster

_ABSENT = frozenset({http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND})

T = TypeVar("T")


class OptionalLister:
    """Requests for optional resources.

    Attributes:
        scope: The part of paths that names the namespace; empty for all namespaces.
        problems: Messages about resources that were not served or are forbidden.
    """

    def __init__(self, cluster: Cluster, scope: str) -> None:
        self.cluster = cluster
        self.scope = scope
        self.problems: list[str] = []

    def paths(
        self, group: str, versions: Sequence[str], plural: str, *, scope: str | None = None
    ) -> tuple[str, ...]:
        """Paths of a collection for those of the versions that the cluster serves, in the order given."""
        scope = self.scope if scope is None else scope
        if not group:
            return (f"/api/v1{scope}/{plural}",)
        served = self.optional("/apis", self.cluster.served, None)
        # Without permission to list the versions, only the best one can be tried.
        chosen = versions[:1] if served is None else [one for one in versions if one in served.get(group, ())]
        return tuple(f"/apis/{group}/{version}{scope}/{plural}" for version in chosen)

    def all(
        self, paths: Sequence[str], kind: type[T], *, metadata_only: bool = False, label_selector: str = ""
    ) -> list[T]:
        """All objects of an optional collection."""
        nothing: list[T] = []

        def ask(path: str) -> list[T]:
            return self.cluster.list_all(
                path, kind, metadata_only=metadata_only, label_selector=label_selector
            )

        return self.first_served(paths, ask, nothing)

    def one(self, path: str, kind: type[T]) -> T | None:
        """One object; None if it does not exist."""
        try:
            return self.cluster.get(path, kind)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.NOT_FOUND:
                raise
            return None

    def first_served(self, paths: Sequence[str], ask: Callable[[str], T], default: T) -> T:
        """The response at the first path that exists: a group may not serve each kind in each of its versions."""
        for path in paths[:-1]:
            try:
                return ask(path)
            except RequestRefused as refused:
                if refused.code != http.HTTPStatus.NOT_FOUND:
                    break
        return self.optional(paths[-1], lambda: ask(paths[-1]), default) if paths else default

    def optional(self, path: str, ask: Callable[[], T], default: T) -> T:
        """The response; the default and a note if the resource is not served or forbidden."""
        try:
            return ask()
        except RequestRefused as refused:
            if refused.code not in _ABSENT:
                raise
            self.note(path, refused)
            return default

    def note(self, path: str, refused: RequestRefused) -> None:
        """Note a missing resource."""
        problem = f"{path} is left out: {refused.code} {refused.reason}: {refused.detail}"
        if problem not in self.problems:
            self.problems.append(problem)
