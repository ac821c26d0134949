"""Creates, updates and patches objects as the real server does; every write to the store passes here."""

import collections
import functools
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulator.kube import admission, errors, managers, names, policies, quotas, validation
from simulator.kube.admission import apply_defaults
from simulator.kube.decoding import (
    Target,
    Write,
    check_preconditions,
    patch_refusal,
    received,
    require_same_name,
    require_same_uid,
)
from simulator.kube.errors import ApiError, FieldError
from simulator.kube.objects import Object, clone, name_of, namespace_of
from simulator.kube.resources import Resource, by_kind
from simulator.kube.store import Record, Store

_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so that no words appear
_SUFFIX_LENGTH = 5
_MAX_GENERATED_PREFIX = 58
_SYSTEM_FIELDS = ("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "uid")
_BAD_REQUEST = 400
_EMPTY_MEANS_ABSENT = ("annotations", "finalizers", "labels", "ownerReferences")


class Registry:
    """Objects with their semantics, as in Kubernetes 1.`minor`."""

    def __init__(self, store: Store, now: Callable[[], str], seed: int = 1) -> None:
        self.store = store
        self.now = now
        self.minor = 36
        self._seed = seed
        self._drawn: collections.Counter[tuple[str, ...]] = collections.Counter()

    # --- reading

    def find(self, resource: Resource, namespace: str, name: str) -> Record:
        """The current version of an object."""
        record = self.store.get(resource, namespace, name)
        if record is None:
            raise errors.not_found(resource, name)
        return record

    # --- creating

    def create(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], write: Write | None = None
    ) -> Object:
        """Store a new object."""
        write = write or Write()
        obj = received(resource, body, write)
        if not resource.namespaced:  # kustomize writes one where it does not know better
            obj["metadata"].pop("namespace", None)
        if namespace_of(obj) not in {"", namespace}:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        if obj["metadata"].get("resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        with self.store.lock:
            self._stamp(obj, namespace)
            admission.prepare_create(self.store, resource, obj)
            self._validate(resource, obj, validation.object_problems(obj))
            if self.store.get(resource, namespace, name_of(obj)) is not None:
                raise errors.already_exists(resource, name_of(obj))
            policies.enforce(self.store, policies.Attempt(write, resource, "CREATE", obj))
            quotas.refuse_excess(self.store, resource, namespace, obj)
            self._attribute(None, obj, write)
            if not write.dry_run:
                self.store.put(resource, obj)
                self._count(namespace)
        return obj

    def _count(self, namespace: str) -> None:
        """Admission writes down at once what it has granted."""
        for quota in self.store.rows(by_kind("ResourceQuota"), namespace) if namespace else ():
            target = Target(quota.resource, quota.namespace, quota.name, "status")
            self.change(target, functools.partial(_with_status, quotas.status_of(self.store, quota)))

    def _attribute(
        self, old: Mapping[str, Any] | None, new: Object, write: Write, *, subresource: str = ""
    ) -> None:
        if write.manager:
            managers.attribute(old, new, manager=write.manager, subresource=subresource, now=self.now())

    def _stamp(self, obj: Object, namespace: str) -> None:
        metadata = obj["metadata"]
        for field in (*_SYSTEM_FIELDS, "resourceVersion"):
            metadata.pop(field, None)
        if not metadata.get("name") and metadata.get("generateName"):
            prefix = str(metadata["generateName"])[:_MAX_GENERATED_PREFIX]
            metadata["name"] = prefix + self._suffix(obj["kind"], namespace, prefix)
        if not metadata.get("name"):
            problem = FieldError.required("metadata.name", "name or generateName is required")
            group = obj["apiVersion"].rpartition("/")[0]
            raise errors.invalid(obj["kind"], group, "", [problem])
        if namespace:
            metadata["namespace"] = namespace
        else:
            metadata.pop("namespace", None)
        drawn = self._dice("uid", obj["kind"], namespace, metadata["name"]).getrandbits(128)
        metadata["uid"] = str(uuid.UUID(int=drawn, version=4))
        metadata["creationTimestamp"] = self.now()
        _drop_empty(metadata)

    def _suffix(self, *of: str) -> str:
        """Five random characters, as the server appends to generateName."""
        return "".join(self._dice("name", *of).choices(_SUFFIX_ALPHABET, k=_SUFFIX_LENGTH))

    def _dice(self, *of: str) -> random.Random:
        """Dice of one object: whatever is created at the same time, the same cluster comes about."""
        self._drawn[of] += 1
        return random.Random("/".join((str(self._seed), *of, str(self._drawn[of]))))

    def _validate(self, resource: Resource, obj: Object, problems: Iterable[FieldError]) -> None:
        if problems := [*names.metadata_problems(resource, obj), *problems]:
            raise errors.invalid(resource.kind, resource.group, name_of(obj), problems)

    # --- changing

    def update(self, target: Target, body: Mapping[str, Any], write: Write | None = None) -> Object:
        """Replace an object, or with a subresource its part, by what a client sent (PUT)."""
        write = write or Write()
        obj = received(target.resource, body, write)
        require_same_name(target, obj)
        resource = target.resource
        with self.store.lock:
            missing = self.store.get(resource, target.namespace, target.name) is None
            if missing and resource.create_on_update and not obj["metadata"].get("resourceVersion"):
                return self.create(resource, target.namespace, obj, write)
            if (
                not obj["metadata"].get("resourceVersion")
                and not resource.unconditional_update
                and not missing
            ):
                problem = FieldError.invalid(
                    "metadata.resourceVersion", "", "must be specified for an update"
                )
                raise errors.invalid(resource.kind, resource.group, target.name, [problem])
            record = self.find(resource, target.namespace, target.name)
            require_same_uid(resource, record, obj)
            return self.change(target, lambda _: obj, write)

    def patch(self, target: Target, edit: Callable[[Object], Mapping[str, Any]], write: Write) -> Object:
        """Change an object by a client's patch: what it makes of the object is checked like a whole object."""

        def checked(obj: Object) -> Object:
            new = edit(obj)
            try:
                found = received(target.resource, new, write)
            except ApiError as error:
                raise patch_refusal(new, error) if error.code == _BAD_REQUEST else error from error
            require_same_name(target, found)
            return found

        return self.change(target, checked, write)

    def change(
        self, target: Target, edit: Callable[[Object], Mapping[str, Any]], write: Write | None = None
    ) -> Object:
        """Read, edit and write back an object in one step; a no-op keeps its resourceVersion.

        With subresource "status" only the status changes, without one it does not.
        """
        resource, write = target.resource, write or Write()
        with self.store.lock:
            record = self.find(resource, target.namespace, target.name)
            new = received(resource, edit(record.copy()), Write())
            check_preconditions(target, record, new)
            for field in ("name", "namespace"):
                _keep(new["metadata"], record.obj["metadata"], field)
            self._settle_fields(target, record, new)
            new["metadata"]["resourceVersion"] = str(record.revision)
            _keep(new["metadata"], record.obj["metadata"], "managedFields")
            if new == record.obj:
                return new
            problems: list[FieldError] = []
            if target.subresource != "status":
                admission.prepare_update(self.store, resource, new)
                problems = validation.change_problems(record.obj, new, minor=self.minor)
                problems = problems or [*validation.object_problems(new)]
            self._validate(resource, new, problems)
            if not write.subresource:
                attempt = policies.Attempt(write, resource, "UPDATE", new, record.obj, target.subresource)
                policies.enforce(self.store, attempt)
            self._attribute(record.obj, new, write, subresource=write.subresource or target.subresource)
            if not write.dry_run:
                self._write(record, new)
            return new

    def _settle_fields(self, target: Target, record: Record, new: Object) -> None:
        """Put back what this request cannot change, complete the rest, and count the generation."""
        old, resource = clone(dict(record.obj)), target.resource
        metadata = new["metadata"]
        for field in _SYSTEM_FIELDS:
            _keep(metadata, old["metadata"], field)
        _drop_empty(metadata)
        if target.subresource == "status":
            for field in (*old, *list(new)):
                if field not in {"metadata", "status"}:
                    _keep(new, old, field)
            for field in resource.status_keeps:
                _keep(metadata, old["metadata"], field)
            return
        if "status" in resource.subresources:
            _keep(new, old, "status")
        apply_defaults(new)
        changed = new.get("spec") != old.get("spec")
        if resource.generation_on_annotations:
            changed = changed or metadata.get("annotations") != old["metadata"].get("annotations")
        if resource.generation and changed:
            metadata["generation"] = int(old["metadata"]["generation"]) + 1

    def _write(self, record: Record, new: Object) -> None:
        """Store the new version; one that only waited for its finalizers is removed instead."""
        metadata = new["metadata"]
        waited = "deletionTimestamp" in metadata and record.obj["metadata"].get("finalizers")
        graceful = metadata.get("deletionGracePeriodSeconds", 0) > 0
        if waited and not metadata.get("finalizers") and not graceful and not _has_content(record):
            self.store.remove(record)
        else:
            self.store.put(record.resource, new)


def _with_status(status: Object, obj: Object) -> Object:
    return {**obj, "status": status}


def _has_content(record: Record) -> bool:
    """Whether a namespace has yet to be emptied, which its own finalizer in `spec` stands for."""
    return record.resource.kind == "Namespace" and bool(record.obj["spec"].get("finalizers"))


def _keep(new: Object, old: Mapping[str, Any], field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)


def _drop_empty(metadata: Object) -> None:
    for field in _EMPTY_MEANS_ABSENT:
        if not metadata.get(field, True):
            del metadata[field]
