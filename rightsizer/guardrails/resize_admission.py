"""The MutatingAdmissionPolicy that gives pods of a resized workload its kept number of GPUs again. Pure.

The API server evaluates it itself (Kubernetes 1.36 or later), so no pod waits for a webhook. It lowers the amount of
one GPU resource of one container, never raises it, and adds an annotation. Whatever is unknown, expired or different
from the record in the ConfigMap changes nothing; so does an error (failurePolicy Ignore).
https://kubernetes.io/docs/reference/access-authn-authz/mutating-admission-policy/
"""

from typing import Any

from rightsizer.changes.record_codec import SIZE_ANNOTATION
from rightsizer.config import PREFIX
from rightsizer.guardrails import cel
from rightsizer.planning.kept_sizes import FIELDS, NAME
from rightsizer.policy.protections import MODE_ANNOTATION, SYSTEM_NAMESPACES

Object = dict[str, Any]
CALLED = "gpu-rightsizer-sizes"
_GROUP = "admissionregistration.k8s.io/v1"
_HASH = 'object.metadata.?labels[?"pod-template-hash"].orValue("")'
_OPTED_OUT = f'.orValue({{}}).exists(k, k.startsWith("{PREFIX}"))'
_VARIABLES = {
    # The workload, by what its controller wrote: a Deployment's ReplicaSet ends with the hash of the template.
    "owners": (
        "object.metadata.?ownerReferences.orValue([]).filter(r, r.?controller.orValue(false)).map(r, "
        'r.kind == "ReplicaSet" && r.apiVersion == "apps/v1" ? '
        f'({_HASH} != "" && r.name.endsWith("-" + {_HASH}) ? '
        f'["Deployment." + r.name.substring(0, r.name.size() - {_HASH}.size() - 1)] : []) : '
        'r.kind == "StatefulSet" && r.apiVersion == "apps/v1" ? ["StatefulSet." + r.name] : '
        'r.kind == "Job" && r.apiVersion == "batch/v1" ? (r.name.matches("-[0-9]+$") ? '
        '["CronJob." + r.name.substring(0, r.name.lastIndexOf("-")), "Job." + r.name] : ["Job." + r.name]) : [])'
    ),
    "sizes": (
        'variables.owners.size() != 1 ? [] : variables.owners[0].map(o, request.namespace + "." + o)'
        f'.filter(k, k in params.?data.orValue({{}})).map(k, params.data[k].split("\\n", {FIELDS}))'
    ),
    # Only the container that asked for the same number then, with the same image, command and class.
    "asking": (
        "variables.sizes.size() != 1 ? [] : variables.sizes.map(s, (object.spec.containers + "
        "object.spec.?initContainers.orValue([])).filter(c, s[0] in c.?resources.limits.orValue({})))[0]"
    ),
    "is_kept": (
        f"variables.sizes.size() == 1 && variables.sizes[0].size() == {FIELDS} && "
        f"!namespaceObject.metadata.?annotations{_OPTED_OUT} && "
        "variables.asking.size() == 1 && variables.sizes.all(s, variables.asking.all(c, "
        "c.name == s[5] && string(c.resources.limits[s[0]]) == s[2] && "
        "string(c.resources.?requests[?s[0]].orValue(s[2])) == s[2] && int(s[1]) > 0 && int(s[1]) < int(s[2]) && "
        '(c.?image.orValue("") == s[6] || c.?image.orValue("").startsWith(s[6] + ":") || '
        'c.?image.orValue("").startsWith(s[6] + "@")) && '
        '(c.?command.orValue([]) + ["--"] + c.?args.orValue([])).join("\\n") == s[8] && '
        'object.spec.?priorityClassName.orValue("") == s[4] && '
        "object.spec.containers.exists(o, o.name == s[5]) && "
        # The API server notes the time of the request there.
        "object.metadata.?managedFields.orValue([]).exists(m, has(m.time) && timestamp(m.time) < timestamp(s[3]))))"
    ),
}
_PLACE = (
    '"/spec/containers/" + string(object.spec.containers.map(c, c.name).indexOf(variables.sizes[0][5])) + '
)
_WORDS = (
    'variables.sizes[0][0] + ": " + variables.sizes[0][2] + " -> " + variables.sizes[0][1] + ", as run " + '
    f'variables.sizes[0][7] + " set it; {MODE_ANNOTATION}: off in the pod template keeps the manifest\'s number"'
)


def _replace(part: str) -> str:
    return (
        f'JSONPatch{{op: "replace", path: {_PLACE}"/resources/{part}/" + '
        "jsonpatch.escapeKey(variables.sizes[0][0]), value: variables.sizes[0][1]}"
    )


_KEY = SIZE_ANNOTATION.replace("/", "~1")
_PATCH = (
    f"!variables.is_kept ? [] : [{_replace('limits')}] + "
    f"(variables.sizes[0][0] in variables.asking[0].resources.?requests.orValue({{}}) ? [{_replace('requests')}] : "
    "[]) + (has(object.metadata.annotations) ? [] : "
    '[JSONPatch{op: "add", path: "/metadata/annotations", value: {}}]) + '
    f'[JSONPatch{{op: "add", path: "/metadata/annotations/{_KEY}", value: {_WORDS}}}]'
)


def resize_admission(own: str) -> list[Object]:
    """The policy and its binding, for records in the namespace `own`."""
    conditions = {
        "elsewhere": f"!(request.namespace in {cel.listed([*SYSTEM_NAMESPACES, own])})",
        "pod": f"!object.metadata.?annotations{_OPTED_OUT}",
    }
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": name, "expression": text} for name, text in conditions.items()],
        "variables": [{"name": name, "expression": text} for name, text in _VARIABLES.items()],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _PATCH}}],
    }
    reference = {"name": NAME, "namespace": own, "parameterNotFoundAction": "Allow"}
    binding = {"policyName": CALLED, "paramRef": reference}
    return [
        {"apiVersion": _GROUP, "kind": kind, "metadata": {"name": CALLED}, "spec": part}
        for kind, part in (("MutatingAdmissionPolicy", spec), ("MutatingAdmissionPolicyBinding", binding))
    ]
