"""A pod's container as a node knows it: by names and by ids. Knows neither devices nor files."""

import dataclasses
import hashlib


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """One container of one pod.

    Attributes:
        uid: The pod's, as the API server gave it.
    """

    namespace: str
    pod: str
    uid: str
    name: str

    @property
    def id(self) -> str:
        """The runtime's id of 64 hexadecimal digits, the same for as long as the pod lives."""
        return hashlib.sha256(f"{self.uid}/{self.name}".encode()).hexdigest()
