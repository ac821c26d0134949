"""What a new ResourceClaimTemplate may say: the same as the one that it is made from, for no more devices. Pure.

The API server evaluates the rule once for each template of the namespace, as a parameter; only the one that the
annotation names counts, and the new one's name begins with its name.
https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#parameter-resources
"""

from rightsizer.changes.record_codec import TEMPLATE_ANNOTATION
from rightsizer.guardrails import cel
from rightsizer.inventory.resource_claims import TEMPLATES
from rightsizer.kinds.claim_templates import MADE

PARAM_KIND = {"apiVersion": TEMPLATES.api_version, "kind": TEMPLATES.kind}
PARAM_REF = {"selector": {}, "parameterNotFoundAction": "Allow"}
"""Deny would refuse everybody the first template of a namespace: it precedes the match conditions."""
_METADATA = cel.child("object", "metadata")
_BASE = cel.child(cel.child(_METADATA, "annotations"), TEMPLATE_ANNOTATION, cel.text(""))
_NAME = cel.child(_METADATA, "name", cel.text(""))


def _is_no_more() -> str:
    """Whether the object requests what the parameter does, for as many or fewer devices."""
    levels, both = [], "[object, params]"
    for step in ("spec", "spec", "devices"):
        both = f"{both}.map(o, {cel.child('o', step)})"
        levels.append(both)
    requests = f"{both}.map(o, {cel.child('o', 'requests', '[]')})"
    exactly = f"[n, o].map(r, {cel.child('r', 'exactly')})"
    counts = f"{exactly}.map(e, {cel.child('e', 'count', '0')})"
    alike = (
        f'n["name"] == o["name"] && {_same_but("[n, o]", "exactly")} && {_same_but(exactly, "count")} && '
        f"[{counts}].all(c, c[0] <= c[1])"
    )
    each = f"[{requests}].all(q, q[0].size() == q[1].size() && q[0].all(n, q[1].exists(o, {alike})))"
    kept = [_same_but(pair, step) for pair, step in zip(levels, ("spec", "devices", "requests"), strict=True)]
    return " && ".join([*kept, each])


def _same_but(pair: str, key: str) -> str:
    """Whether two maps have the same entries, but for one."""
    return (
        f"[{pair}].all(l, l[0].all(k, k == {cel.text(key)} || (k in l[1] && l[0][k] == l[1][k])) && "
        "l[1].all(k, k in l[0]))"
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
    "a ResourceClaimTemplate may request no more and nothing else than the one that it is made from",
)
"""Expressions about a template that is created, and the messages of refusals; the second one needs the parameter."""
