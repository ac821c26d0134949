"""Authentication and authorization: bearer tokens, users and rules. Must not know HTTP."""

import dataclasses
import threading
from collections.abc import Iterable, Mapping

from simulator.kube import errors
from simulator.kube.resources import Resource

ADMIN_TOKEN = "admin-token"  # noqa: S105 - of a simulator on loopback
ADMIN = "kubernetes-admin"
MASTERS = "system:masters"
_ANY = "*"


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """A user and its groups."""

    name: str
    groups: tuple[str, ...] = ()


SERVER = User("system:apiserver", ("system:masters", "system:authenticated"))
"""The user of the server and its controllers."""
_ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """What someone wants to do; `resource` includes a subresource as `pods/eviction`."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A rule that allows or denies; "*" matches everything.

    Attributes:
        subject: Name of a user or group.
        resources: Plural names, subresources as `deployments/scale`; "*/scale" is every scale.
        namespaces: "" is cluster scope.
        names: Of objects; creates and lists have none.
    """

    subject: str
    verbs: tuple[str, ...] = (_ANY,)
    resources: tuple[str, ...] = (_ANY,)
    groups: tuple[str, ...] = (_ANY,)
    namespaces: tuple[str, ...] = (_ANY,)
    names: tuple[str, ...] = (_ANY,)

    def covers(self, user: User, action: Action) -> bool:
        """Whether the rule speaks about this user doing this."""
        return (
            self.subject in {_ANY, user.name, *user.groups}
            and _named(self.verbs, action.verb)
            and _named(self.groups, action.group)
            and _named(self.namespaces, action.namespace)
            and _named(self.names, action.name)
            and self._names_resource(action.resource)
        )

    def _names_resource(self, resource: str) -> bool:
        subresource = resource.partition("/")[2]
        return _named(self.resources, resource) or (
            bool(subresource) and f"*/{subresource}" in self.resources
        )


def _named(known: Iterable[str], value: str) -> bool:
    known = tuple(known)
    return _ANY in known or value in known


class Access:
    """Users and rules. A denial outweighs what is allowed; what no rule allows is denied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = {ADMIN_TOKEN: User(ADMIN, (MASTERS, "system:authenticated"))}
        self._allowed = [Rule(MASTERS)]
        self._denied: list[Rule] = []

    def add_user(self, token: str, user: User) -> None:
        """Let a token authenticate as a user."""
        with self._lock:
            self._users[token] = User(user.name, (*user.groups, "system:authenticated"))

    def revoke(self, token: str) -> None:
        """Forget a token, as when it expired."""
        with self._lock:
            self._users.pop(token, None)

    def allow(self, rule: Rule) -> None:
        """Add a rule that allows."""
        with self._lock:
            self._allowed.append(rule)

    def deny(self, rule: Rule) -> None:
        """Add a rule that denies, whatever else allows."""
        with self._lock:
            self._denied.append(rule)

    def authenticate(self, authorization: str | None) -> User:
        """The user of an Authorization header; anonymous without one."""
        if authorization is None:
            return _ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        with self._lock:
            user = self._users.get(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise errors.unauthorized()
        return user

    def identify(self, headers: Mapping[str, str]) -> User:
        """The user of a request, after impersonation."""
        user = self.authenticate(headers.get("authorization"))
        name = headers.get("impersonate-user")
        if name is None:
            return user
        if not self.may(user, Action("impersonate", "", "users", name=name)):
            raise errors.ApiError(
                403,
                "Forbidden",
                f'users "{name}" is forbidden: User "{user.name}" cannot impersonate resource "users" in API group "" '
                "at the cluster scope",
            )
        groups = headers.get("impersonate-group")
        return User(name, ((groups,) if groups else ()) + ("system:authenticated",))

    def may(self, user: User, action: Action) -> bool:
        """Whether the rules let the user do it."""
        with self._lock:
            if any(rule.covers(user, action) for rule in self._denied):
                return False
            return any(rule.covers(user, action) for rule in self._allowed)

    def require(self, user: User, action: Action, resource: Resource) -> None:
        """Refuse what the rules do not let the user do."""
        if self.may(user, action):
            return
        where = f'in the namespace "{action.namespace}"' if action.namespace else "at the cluster scope"
        raise errors.forbidden(
            resource,
            action.name,
            f'User "{user.name}" cannot {action.verb} resource "{action.resource}" in API group '
            f'"{action.group}" {where}',
        )
