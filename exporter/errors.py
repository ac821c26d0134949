"""The exporter's errors. Each edge translates its library's errors into these, once; nothing else is raised to callers.

ExporterError             anything that this program says it cannot do        exit code 1
├── UsageError            flags or environment that make no sense             exit code 2
│   └── WebConfigError    a web configuration file that makes no sense
├── StartError            the exporter cannot begin its work
│   └── NoLibraryError    and will not in this container or on this machine: it has no driver's library
├── RequestError          a client's request that is refused, with its HTTP status
├── ReadingError          one reading of one device failed, with its reason
├── PodResourcesError     the kubelet did not say which pod has which device
│   └── UnimplementedError    and never will: it does not serve the API
└── ApiServerError        the API server did not say what it knows of this node's pods
    └── VersionExpiredError   because it has forgotten the past: they must be listed again
"""

import enum
from collections.abc import Sequence
from http import HTTPStatus


class Reason(enum.Enum):
    """Why a reading failed: a closed set, because the value is the `reason` label of a counter.

    NOT_SUPPORTED and PENDING are no failures: there is nothing to mend.
    """

    NOT_SUPPORTED = "not_supported"
    PENDING = "pending"
    UNAVAILABLE = "unavailable"
    NO_PERMISSION = "no_permission"
    GONE = "gone"
    GPU_LOST = "gpu_lost"
    RESET_REQUIRED = "reset_required"
    TIMEOUT = "timeout"
    STUCK = "stuck"
    DRIVER = "driver"
    DEFECT = "defect"
    UNKNOWN = "unknown"

    @property
    def is_failure(self) -> bool:
        """Whether something is wrong."""
        return self not in {Reason.NOT_SUPPORTED, Reason.PENDING}


class ExporterError(Exception):
    """Whatever the exporter reports to people in one line.

    Attributes:
        exit_code: What the process ends with when this error ends it.
    """

    exit_code = 1


class UsageError(ExporterError):
    """Flags or environment variables that make no sense; all problems together, one per line."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))


class WebConfigError(UsageError):
    """A web configuration file that makes no sense; never repeats what may be a secret."""


class StartError(ExporterError):
    """The exporter cannot begin its work; the message says what would let it."""


class NoLibraryError(StartError):
    """The driver's library is not there, nor will it be before the exporter is set up differently."""


class RequestError(ExporterError):
    """A client's request is refused; the message is for the client.

    Attributes:
        status: What the client is answered.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class ReadingError(ExporterError):
    """A reading of a device failed; its series is absent, everything else goes on.

    Attributes:
        reason: Why, for the failure counter and for deciding what still makes sense.
    """

    def __init__(self, what: str, reason: Reason, detail: str) -> None:
        super().__init__(f"{what}: {detail}")
        self.reason = reason


class PodResourcesError(ExporterError):
    """The kubelet's PodResources API gave no usable answer."""


class UnimplementedError(PodResourcesError):
    """The kubelet does not serve PodResources v1: asking again is pointless until it is replaced."""


class ApiServerError(ExporterError):
    """The API server gave no usable answer.

    Attributes:
        retry_after_s: How long it wants to be left alone, in seconds.
    """

    retry_after_s = 0.0


class VersionExpiredError(ApiServerError):
    """The API server no longer knows the changes since the version that was asked for."""
