"""Evaluates the CEL selectors of ResourceClaims and DeviceClasses on devices. Impure only in what it imports.

https://kubernetes.io/docs/reference/kubernetes-api/resource/resource-claim-v1/#CELDeviceSelector
The API server has limited the cost of each expression before it stored it.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.inventory.gpu_requests import quantity_of
from rightsizer.inventory.resource_slices import PublishedDevice
from rightsizer.model import DeviceId

MISSING_LIBRARY = "the library cel-expr-python is missing: install gpu-rightsizer[dra]"

MAX_LENGTH = 2_000
"""Longer selectors are not evaluated, nor those with loops: tenants write them, and they run for thousands of GPUs."""
_LOOP = re.compile(r"\.\s*(all|exists|exists_one|existsOne|map|filter|transformList|transformMap)\s*\(")

_MULTIPLIES = re.compile(r"""\b(?:matches|replace|join|split|quote|format|bind)\b|\{|\\[pPxuU0-7"']""")
"""Functions that make text longer, and repetitions and large classes in regular expressions, also as escapes or put
together: each may multiply the time of the others."""
_READ = re.compile(
    r"""\bdevice\.(?:driver|allowMultipleAllocations"""
    r"""|(attributes|capacity)\[(?:"([^"\\]*)"|'([^'\\]*)')\]\.([A-Za-z_][A-Za-z_0-9]*))\b(?!\s*\()"""
)
"""A read of one field; a call after the last name would be of the whole map."""

_QUANTITY, _VERSION = "quantity", "semver"
"""Keys of the maps that stand for values of Kubernetes's own types."""


class _Attribute(msgspec.Struct):
    """resourcev1.DeviceAttribute: one of its fields is set."""

    string: str | None = None
    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None
    strings: list[str] | None = None
    integers: list[int] | None = msgspec.field(default=None, name="ints")
    booleans: list[bool] | None = msgspec.field(default=None, name="bools")
    versions: list[str] | None = None

    @property
    def value(self) -> object:
        """The value as an expression sees it."""
        if self.version is not None:
            return semver(self.version)
        if self.versions is not None:
            return [semver(each) for each in self.versions]
        values = (self.string, self.integer, self.boolean, self.strings, self.integers, self.booleans)
        return next((value for value in values if value is not None), None)


class _Capacity(msgspec.Struct):
    value: str | int = 0


class SelectorError(Exception):
    """A set of devices that an expression or a claim accepts is unknown; the message says why."""


class FailedOnDeviceError(SelectorError):
    """An expression fails on a device, which the scheduler then allocates to nobody who uses the expression."""


Values = dict[str, dict[str, object]]
"""Attributes or capacities by domain and name."""


def device_variables(one: DeviceId, published: PublishedDevice) -> dict[str, Any]:
    """Fields that an expression sees as `device`.

    Raises:
        SelectorError: An attribute or a capacity cannot be read.
    """
    fields = published.fields
    try:
        attributes = msgspec.json.decode(fields.attributes, type=dict[str, _Attribute])
        amounts = msgspec.json.decode(fields.capacity, type=dict[str, _Capacity])
        capacity = {name: quantity(str(each.value)) for name, each in amounts.items()}
    except (msgspec.DecodeError, ValueError) as error:
        raise SelectorError(f"device {'/'.join(one)} cannot be read: {error}") from error
    return {
        "driver": one.driver,
        "allowMultipleAllocations": fields.allow_multiple_allocations,
        "attributes": _by_domain(one.driver, {name: each.value for name, each in attributes.items()}),
        "capacity": _by_domain(one.driver, capacity),
    }


def attribute_of(variables: Mapping[str, Any], name: str) -> tuple[type, object] | None:
    """The type and value of a fully qualified attribute; None if the device has none."""
    domain, _, short = name.rpartition("/")
    value = variables["attributes"].get(domain, {}).get(short)
    return None if value is None else (type(value), value[_VERSION] if isinstance(value, dict) else value)


def _by_domain(driver: str, values: Mapping[str, object]) -> Values:
    """A name without a domain belongs to the driver's."""
    found: Values = {driver: {}}
    for name, value in values.items():
        domain, _, short = name.rpartition("/")
        found.setdefault(domain or driver, {})[short] = value
    return found


@functools.lru_cache(maxsize=256)
def fields_read(expression: str) -> Sequence[tuple[str, str, str]] | None:
    """Attributes and capacities that it reads, without driver and sharing: kind, domain, name; None if unknown."""
    found = _READ.findall(expression)
    if expression.count("device") != len(found):
        return None  # not each is the begin of such a read
    return sorted({(kind, double or single, name) for kind, double, single, name in found if kind})


def cost_of(expression: str) -> int:
    """Upper bound of the time of one evaluation, in steps of some 10 us; the API server's bound allows seconds."""
    factor: int = 20 ** len(_MULTIPLIES.findall(expression))
    return 25 * (fields_read(expression) is None) + (1 + len(expression) // 20) * factor


def matches(expression: str, variables: Mapping[str, Any]) -> bool:
    """Whether a device matches.

    Raises:
        SelectorError: The expression uses what is not known here.
        FailedOnDeviceError: It fails, for example by a missing attribute: the scheduler does not place the pod at all.
    """
    compiled = _compiled(expression)
    if isinstance(compiled, SelectorError):
        raise compiled
    try:
        result = compiled.eval(data={"device": variables})
    except RuntimeError as error:  # it took too long
        raise SelectorError(_words(expression, error)) from error
    value = result.value()
    if not isinstance(value, bool):
        raise FailedOnDeviceError(_words(expression, value))
    return value


@functools.lru_cache(maxsize=256)
def _compiled(expression: str) -> Any:  # noqa: ANN401 - the library has no types
    """The compiled expression, or the error: both are needed once for each device."""
    if _LOOP.search(expression) or len(expression) > MAX_LENGTH:
        return SelectorError(_words(expression, f"it has a loop, or more than {MAX_LENGTH} characters"))
    try:
        return _environment().compile(expression)
    except RuntimeError as error:
        return SelectorError(_words(expression, str(error).removeprefix("INVALID_ARGUMENT: ")))


def _words(expression: str, reason: object) -> str:
    first = str(reason).partition("\n")[0]
    return f"selector {expression[:200]!r} cannot be evaluated: {first[:200]}"


@functools.cache
def _environment() -> Any:  # noqa: ANN401 - the library has no types
    try:
        from cel_expr_python import cel  # noqa: PLC0415 - most clusters have no claims that wait
        from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings  # noqa: PLC0415
    except ImportError as error:
        raise SelectorError(MISSING_LIBRARY) from error
    one, text = cel.Type.Map(cel.Type.STRING, cel.Type.DYN), cel.Type.STRING
    number, truth = cel.Type.INT, cel.Type.BOOL

    def function(name: str, call: Callable[..., object], result: Any, *takes: Any, member: bool) -> Any:  # noqa: ANN401
        overload = cel.Overload(
            f"k8s_{name}", return_type=result, parameters=takes, is_member=member, impl=call
        )
        return cel.FunctionDecl(name, [overload])

    functions = [
        function("quantity", quantity, one, text, member=False),
        function("semver", semver, one, text, member=False),
        function("compareTo", _compared, number, one, one, member=True),
        function("isGreaterThan", lambda a, b: _compared(a, b) > 0, truth, one, one, member=True),
        function("isLessThan", lambda a, b: _compared(a, b) < 0, truth, one, one, member=True),
        function("major", lambda each: _order(each)[0], number, one, member=True),
        function("minor", lambda each: _order(each)[1], number, one, member=True),
        function("patch", lambda each: _order(each)[2], number, one, member=True),
        function("asInteger", lambda each: int(_order(each)[0]), number, one, member=True),
        function(
            "asApproximateFloat", lambda each: float(_order(each)[0]), cel.Type.DOUBLE, one, member=True
        ),
    ]
    extensions = [ext_strings.ExtStrings(), ext_bindings.ExtBindings(), ext_optional.ExtOptional()]
    return cel.NewEnv(variables={"device": cel.Type.DYN}, extensions=extensions, functions=functions)


def quantity(text: str) -> dict[str, str]:
    """A Kubernetes quantity as an expression's value.

    Raises:
        ValueError: It is none.
    """
    return {_QUANTITY: str(quantity_of(text))}


def semver(text: str) -> dict[str, str]:
    """A semantic version as an expression's value."""
    return {_VERSION: text}


def _compared(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    if one.keys() != other.keys():
        raise ValueError("a quantity is no version")
    first, second = _order(one), _order(other)
    return (first > second) - (first < second)


def _order(one: Mapping[str, str]) -> tuple[Any, ...]:
    """A key that orders quantities, or versions without a pre-release.

    Raises:
        ValueError: It is neither.
    """
    if _QUANTITY in one:
        return (quantity_of(one[_QUANTITY]),)
    major, minor, patch = one[_VERSION].split(".")
    return int(major), int(minor), int(patch)
