"""What is served: /version, /api, /apis, /openapi/v3 and the lists of resources, all made from the table. Pure."""

import functools

from simulator.kube.objects import Object
from simulator.kube.resources import RESOURCES, Resource, group_versions

VERSION: Object = {
    "major": "1",
    "gitCommit": "simulated",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
# (kind, group, version, verbs) of subresources that are not the resource itself
_SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "eviction": ("Eviction", "policy", "v1", ("create",)),
    "proxy": ("ServiceProxyOptions", "", "", ("create", "delete", "get", "patch", "update")),
    "scale": ("Scale", "autoscaling", "v1", ("get", "patch", "update")),
}


def discover(path: str, *, minor: int, third_party: bool) -> Object | None:
    """The discovery document at a path of a server of Kubernetes 1.`minor`, if there is one."""
    if path.rstrip("/") == "/version":
        return {**VERSION, "minor": str(minor), "gitVersion": f"v1.{minor}.0"}
    return _documents(third_party=third_party).get(path.rstrip("/"))


@functools.cache
def _documents(*, third_party: bool) -> dict[str, Object]:
    served = group_versions(third_party=third_party)
    groups = {name: _group(name, versions) for name, versions in served.items()}
    documents: dict[str, Object] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/api/v1": _resource_list("", "v1"),
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())},
    }
    for name, versions in served.items():
        documents[f"/apis/{name}"] = {"kind": "APIGroup", "apiVersion": "v1", **groups[name]}
        for version in versions:
            documents[f"/apis/{name}/{version}"] = _resource_list(name, version)
    lists = [path for path, document in documents.items() if document["kind"] == "APIResourceList"]
    documents["/openapi/v3"] = {
        "paths": {path.lstrip("/"): {"serverRelativeURL": f"/openapi/v3{path}"} for path in lists}
    }
    return documents | {f"/openapi/v3{path}": _openapi(path) for path in lists}


def _openapi(path: str) -> Object:
    """Without schemas: kubectl only looks whether the server itself validates fields of a kind."""
    group, version = path.split("/")[-2:] if path.startswith("/apis/") else ("", "v1")
    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for row in RESOURCES:
        if (row.group, row.version) != (group, version):
            continue
        kind = {"group": group, "version": version, "kind": row.kind}
        namespace = "namespaces/{namespace}/" if row.namespaced else ""
        paths[f"{path}/{namespace}{row.plural}/{{name}}"] = {
            "patch": {
                "parameters": parameters,
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-group-version-kind": kind,
            }
        }
    return {"openapi": "3.0.0", "info": {"title": "simulated", "version": version}, "paths": paths}


def _group(name: str, versions: list[str]) -> Object:
    served = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def _resource_list(group: str, version: str) -> Object:
    rows = [row for row in RESOURCES if (row.group, row.version) == (group, version)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [entry for row in rows for entry in _entries(row)],
    }


def _entries(row: Resource) -> list[Object]:
    main: Object = {
        "name": row.plural,
        "singularName": row.kind.lower(),
        "namespaced": row.namespaced,
        "kind": row.kind,
        "verbs": list(row.verbs),
    }
    if row.short_names:
        main["shortNames"] = list(row.short_names)
    return [main, *(_subresource(row, name) for name in row.subresources)]


def _subresource(row: Resource, name: str) -> Object:
    entry: Object = {"name": f"{row.plural}/{name}", "singularName": "", "namespaced": row.namespaced}
    if name not in _SUBRESOURCES:
        return {**entry, "kind": row.kind, "verbs": ["get", "patch", "update"]}
    kind, group, version, verbs = _SUBRESOURCES[name]
    if not version:
        return {**entry, "kind": kind, "verbs": list(verbs)}
    return {**entry, "group": group, "version": version, "kind": kind, "verbs": list(verbs)}
