"""Rule for new ResourceClaimTemplates: as the one that it is made from, for no more or no larger devices. Pure.

The API server evaluates the rule once for each template of the namespace, as a parameter; only the one that the
annotation names counts, and the new one's name begins with its name.
https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#parameter-resources
"""

from rightsizer.changes.record_codec import TEMPLATE_ANNOTATION
from rightsizer.guardrails import cel
from rightsizer.inventory.gpu_requests import MIG_CLASS, WHOLE_CLASS
from rightsizer.inventory.resource_claims import TEMPLATES
from rightsizer.kinds.claim_templates import MADE, PROFILE

PARAM_KIND = {"apiVersion": TEMPLATES.api_version, "kind": TEMPLATES.kind}
PARAM_REF = {"selector": {}, "parameterNotFoundAction": "Allow"}
"""Deny would refuse everybody the first template of a namespace: it precedes the match conditions."""
_METADATA = cel.child("object", "metadata")
_BASE = cel.child(cel.child(_METADATA, "annotations"), TEMPLATE_ANNOTATION, cel.text(""))
_NAME = cel.child(_METADATA, "name", cel.text(""))


def _is_no_more() -> str:
    """Whether the object requests what the parameter does, for as many or fewer devices, or for smaller ones."""
    levels, both = [], "[object, params]"
    for step in ("spec", "spec", "devices"):
        both = f"{both}.map(o, {cel.child('o', step)})"
        levels.append(both)
    requests = f"{both}.map(o, {cel.child('o', 'requests', '[]')})"
    exactly = f"[n, o].map(r, {cel.child('r', 'exactly')})"
    smaller = f"({_are_fewer()}) || ({_have_smaller_profile()}) || ({_are_parts_of_whole()})"
    alike = f'n["name"] == o["name"] && {_same_but("[n, o]", "exactly")} && [{exactly}].all(e, {smaller})'
    fits = f"[{requests}].all(q, q[0].size() == q[1].size() && q[0].all(n, q[1].exists(o, {alike})))"
    kept = [_same_but(pair, step) for pair, step in zip(levels, ("spec", "devices", "requests"), strict=True)]
    return " && ".join([*kept, fits])


def _are_fewer() -> str:
    """Condition on two requests `e`: the new one is for no more devices."""
    counts = f"e.map(r, {cel.child('r', 'count', '0')})"
    return f"{_same_but('e', 'count')} && [{counts}].all(c, c[0] <= c[1])"


_SELECTORS = (
    f"e.map(r, {cel.child('r', 'selectors', '[]')}.map(s, "
    f"{cel.child(cel.child('s', 'cel'), 'expression', cel.text(''))}))"
)
"""Expressions of each of two requests `e`."""


def _is_profile(expressions: str) -> str:
    """Whether a list has one expression, and that names a MIG profile."""
    return f"{expressions}.size() == 1 && {expressions}.all(x, x.matches({cel.text(PROFILE)}))"


def _have_smaller_profile() -> str:
    """Condition on two requests `e`: the new one is for a MIG profile with no more slices and no more memory."""
    numbers = [
        f't.map(x, int(x[0].find("[0-9]+{unit}").replace({cel.text(suffix)}, "")))'
        for unit, suffix in (("g[.]", "g."), ("gb", "gb"))
    ]
    are_smaller = " && ".join(f"[{sizes}].all(c, c[0] <= c[1])" for sizes in numbers)
    are_profiles = f"{_is_profile('t[0]')} && {_is_profile('t[1]')}"
    return f"{_same_but('e', 'selectors')} && [{_SELECTORS}].all(t, {are_profiles} && {are_smaller})"


def _are_parts_of_whole() -> str:
    """Condition on two requests `e`: the new one is for a MIG profile in place of a whole GPU."""
    classes = f"e.map(r, {cel.child('r', 'deviceClassName', cel.text(''))})"
    wanted = f"[{cel.text(MIG_CLASS)}, {cel.text(WHOLE_CLASS)}]"
    are_profiles = f"{_is_profile('t[0]')} && t[1].size() == 0"
    return (
        f"{classes} == {wanted} && {_same_but('e', 'selectors', 'deviceClassName')} && "
        f"[{_SELECTORS}].all(t, {are_profiles})"
    )


def _same_but(pair: str, *keys: str) -> str:
    """Whether two maps have the same entries, but for those of some keys."""
    but = f"k in {cel.listed(keys)}"
    return (
        f"[{pair}].all(l, l[0].all(k, {but} || (k in l[1] && l[0][k] == l[1][k])) && "
        f"l[1].all(k, {but} || k in l[0]))"
    )


_IS_NAMED = (
    f"{_NAME}.startsWith({_BASE}) && {_NAME}.substring({_BASE}.size()).matches({cel.text(f'^{MADE}$')})"
)
NAME_RULE = (
    f'{_BASE} != "" && {_IS_NAMED}',
    "a ResourceClaimTemplate needs the name that gpu-rightsizer gives it",
)
SIZE_RULE = (
    f'params["metadata"]["name"] != {_BASE} || ({_is_no_more()})',
    "a ResourceClaimTemplate may request no more, nothing larger and nothing else than the one that it is made from",
)
"""Expressions about a template that is created, and the messages of refusals; the second one needs the parameter."""
