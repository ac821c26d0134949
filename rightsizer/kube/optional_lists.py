"""Asking for what not every cluster serves, or serves us: what is missing is noted, and the rest goes on."""

import http
from collections.abc import Callable, Sequence
from typing import TypeVar

from rightsizer.errors import RequestRefused
from rightsizer.kube.cluster import Cluster

_ABSENT = frozenset({http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND})

T = TypeVar("T")


class Asker:
    """The questions of one reading.

    Attributes:
        cluster: Who is asked.
        scope: The part of paths that names the namespace; empty for all.
        problems: What was not served, or not for us, in words.
    """

    def __init__(self, cluster: Cluster, scope: str) -> None:
        self.cluster = cluster
        self.scope = scope
        self.problems: list[str] = []

    def paths(
        self, group: str, versions: Sequence[str], plural: str, *, scope: str | None = None
    ) -> tuple[str, ...]:
        """Where a collection may be served, by those of the versions that its group has, in their order."""
        scope = self.scope if scope is None else scope
        if not group:
            return (f"/api/v1{scope}/{plural}",)
        served = self.optional("/apis", self.cluster.served, None)
        # Who may not ask which there are can only try the best.
        chosen = versions[:1] if served is None else [one for one in versions if one in served.get(group, ())]
        return tuple(f"/apis/{group}/{version}{scope}/{plural}" for version in chosen)

    def all(
        self, paths: Sequence[str], kind: type[T], *, metadata_only: bool = False, label_selector: str = ""
    ) -> list[T]:
        """A collection that may not be there, or not for us."""
        nothing: list[T] = []

        def ask(path: str) -> list[T]:
            return self.cluster.list_all(
                path, kind, metadata_only=metadata_only, label_selector=label_selector
            )

        return self.first_served(paths, ask, nothing)

    def one(self, path: str, kind: type[T]) -> T | None:
        """One object; None where it is gone."""
        try:
            return self.cluster.get(path, kind)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.NOT_FOUND:
                raise
            return None

    def first_served(self, paths: Sequence[str], ask: Callable[[str], T], otherwise: T) -> T:
        """The answer at the first path that there is: a group may serve a version without serving each kind in it."""
        for path in paths[:-1]:
            try:
                return ask(path)
            except RequestRefused as refused:
                if refused.code != http.HTTPStatus.NOT_FOUND:
                    break
        return self.optional(paths[-1], lambda: ask(paths[-1]), otherwise) if paths else otherwise

    def optional(self, path: str, ask: Callable[[], T], otherwise: T) -> T:
        """What may be missing; then that is noted."""
        try:
            return ask()
        except RequestRefused as refused:
            if refused.code not in _ABSENT:
                raise
            self.note(path, refused)
            return otherwise

    def note(self, path: str, refused: RequestRefused) -> None:
        """That something is missing."""
        problem = f"{path} is left out: {refused.code} {refused.reason}: {refused.detail}"
        if problem not in self.problems:
            self.problems.append(problem)
