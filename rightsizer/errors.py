"""All errors that users see.

RightsizerError                 exit 1
├── UsageError                  exit 2: invalid command line
├── ConfigurationError          exit 2: a file or an environment variable is wrong
│   └── FileError               …a file of gpu-rightsizer; carries all its problems, each with its line
│       ├── PolicyError         …the policy
│       ├── PricesError         …the price table
│       └── SignalsError        …the table of another exporter's metrics
├── PrometheusError             the metrics could not be read
│   ├── PrometheusUnreachable   no answer
│   ├── QueryRefused            Prometheus refuses this query
│   │   └── QueryTooLarge       …but may answer a smaller one: of fewer series, or shorter
│   └── EvidenceIncomplete      the answer is marked as incomplete
└── ClusterError                a request to the API server failed
    ├── ClusterUnreachable      no answer; whether a write took effect is unknown
    ├── LeaseLost               another process may write; nothing was sent
    ├── Throttled               the API server answered 429 earlier in this run; nothing was sent
    └── RequestRefused          it answers with a Status: code, reason and message are kept

A message says what was attempted, on what, why it failed and what would be right. A library's errors are translated
once, at the edge that uses the library, and chained.
"""

import dataclasses
import http
import re
from collections.abc import Sequence

import msgspec

INVALID_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for JSON that is invalid, not UTF-8, or nested too deeply."""


class RightsizerError(Exception):
    """An error that a user sees; its text is the whole message."""

    exit_code = 1


class UsageError(RightsizerError):
    """The command line asks for something impossible or ambiguous."""

    exit_code = 2


class ConfigurationError(RightsizerError):
    """A configuration source has an invalid value."""

    exit_code = 2


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem of a file: its 1-based line (0 for the whole file), field and message."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        """One line of text, without the file's name."""
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.field}: {self.message}" if self.field else f"{where}{self.message}"


class FileError(ConfigurationError):
    """A file that cannot be used: all its problems at once."""

    noun = "file"

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems))
        counted = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{self.noun} {source} cannot be used ({counted}):{lines}")


class PolicyError(FileError):
    """A policy that cannot be used."""

    noun = "policy"


class PricesError(FileError):
    """A price table that cannot be used."""

    noun = "price table"


class SignalsError(FileError):
    """A table of another exporter's metrics that cannot be used."""

    noun = "signals table"


class PrometheusError(RightsizerError):
    """The metrics could not be read."""


class PrometheusUnreachable(PrometheusError):  # noqa: N818 - the tree above names states, not endings
    """Nobody answers at the Prometheus URL, or not within the deadline."""


class QueryRefused(PrometheusError):  # noqa: N818
    """Prometheus answered with an error."""


class QueryTooLarge(QueryRefused):
    """A limit of size or time was hit: parts of the same question may each be answered."""


class EvidenceIncomplete(PrometheusError):  # noqa: N818
    """Prometheus answered, but warns that the answer is partial, or has nothing that could be judged."""


class ClusterError(RightsizerError):
    """A request to the Kubernetes API server failed."""


class ClusterUnreachable(ClusterError):  # noqa: N818
    """The request or its answer was lost on the way."""


class LeaseLost(ClusterError):  # noqa: N818
    """This process does not hold the Lease (any more). Nothing was sent."""


class Throttled(ClusterError):  # noqa: N818
    """The API server answered 429 earlier in this run. Nothing was sent."""


# At the beginning of the message: what follows may quote the object, which a tenant wrote.
_FORBIDDEN = r'(?:[a-z0-9./-]+(?: "[^"]*")? is forbidden: )?'
_NO_PERMISSION = re.compile(_FORBIDDEN + r'User "[^"]*" cannot ')
_OWN_POLICY = _FORBIDDEN + "ValidatingAdmissionPolicy 'gpu-rightsizer"
_UNUSABLE = "[^']*'(?: with binding '[^']*')? denied request: (?:failed to configure|compilation error)"
_OUT_OF_POLICY = {
    http.HTTPStatus.FORBIDDEN.value: re.compile(_OWN_POLICY),
    # Otherwise 422 is about what the object's owner wrote, such as a value that an expression cannot evaluate.
    http.HTTPStatus.UNPROCESSABLE_ENTITY.value: re.compile(_OWN_POLICY + _UNUSABLE),
}
_DENIED = re.compile(
    _FORBIDDEN + r"""(?:admission webhook "[^"]*"|ValidatingAdmissionPolicy '[^']*'.*?) denied """
)
# In its namespace nothing more may be created (plugins ResourceQuota and NamespaceLifecycle). Secrets are created only
# in gpu-rightsizer's own namespace.
_NAMESPACE_FULL = re.compile(
    r'(?!secrets )[a-z0-9./-]+ "[^"]*" is forbidden: '
    r"(?:(?:exceeded|insufficient|status unknown for) quota\b"
    r"|unable to create new content in namespace \S+ because it is being terminated)"
)


class RequestRefused(ClusterError):  # noqa: N818
    """The API server answered with an error Status.

    Attributes:
        code: HTTP status code (or the Status object's, where the two differ).
        reason: Machine-readable reason such as "Conflict" or "NotFound"; empty where the server gave none.
        detail: The Status object's message.
        causes: Reasons of `details.causes`, such as "DisruptionBudget".
    """

    @property
    def is_out_of_policy(self) -> bool:
        """Whether one of gpu-rightsizer's ValidatingAdmissionPolicies refused what it does, or is unusable."""
        words = _OUT_OF_POLICY.get(self.code)
        return words is not None and words.match(self.detail) is not None

    @property
    def is_about_object(self) -> bool:
        """Whether the object itself allows no such write.

        It is invalid, too large, its definition lacks a field, an admission policy of the cluster denies it, or its
        namespace has no quota left or is being deleted.
        """
        is_unknown_field = self.code == http.HTTPStatus.BAD_REQUEST and "unknown field" in self.detail
        is_own = self.code in {http.HTTPStatus.UNPROCESSABLE_ENTITY, http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
        is_denied = self.code < http.HTTPStatus.INTERNAL_SERVER_ERROR and bool(_DENIED.match(self.detail))
        is_full = self.code == http.HTTPStatus.FORBIDDEN and bool(_NAMESPACE_FULL.match(self.detail))
        is_too_large = self.detail == "etcdserver: request is too large"  # 500, and no dry run shows it
        return (
            is_own or is_unknown_field or is_denied or is_full or is_too_large
        ) and not self.is_out_of_policy

    @property
    def is_missing_permission(self) -> bool:
        """Whether this account lacks the permission."""
        return self.code == http.HTTPStatus.FORBIDDEN and _NO_PERMISSION.match(self.detail) is not None

    @property
    def is_by_disruption_budget(self) -> bool:
        """Whether a PodDisruptionBudget, or several for one pod (500), do not allow an eviction."""
        is_several = (
            self.code == http.HTTPStatus.INTERNAL_SERVER_ERROR and "PodDisruptionBudget" in self.detail
        )
        return is_several or (self.code == http.HTTPStatus.TOO_MANY_REQUESTS and not self.is_throttled)

    @property
    def is_throttled(self) -> bool:
        """Whether the API server throttles requests (429), and not a PodDisruptionBudget an eviction."""
        return self.code == http.HTTPStatus.TOO_MANY_REQUESTS and "DisruptionBudget" not in self.causes

    def __init__(
        self, attempted: str, *, code: int, reason: str, detail: str, causes: tuple[str, ...] = ()
    ) -> None:
        self.code = code
        self.reason = reason
        self.detail = detail
        self.causes = causes
        if code == http.HTTPStatus.UNAUTHORIZED:
            self.exit_code = ConfigurationError.exit_code
        super().__init__(
            f"{attempted}: {code} {reason or 'error'}: {detail or 'no message from the API server'}"
        )
