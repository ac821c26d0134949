"""YAML as a tree that knows its lines, for files of which an error must name the line and never repeat a secret."""

import dataclasses
import re
from typing import TYPE_CHECKING, TypeAlias

from exporter.errors import WebConfigError

if TYPE_CHECKING:
    import yaml  # at run time only where there is a file to read: it is 2 MiB

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    """A value as it was written. `kind` is YAML's own guess: str, int, bool, null and so on."""

    line: int
    text: str = dataclasses.field(repr=False)
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: tuple["Tree", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """A mapping, in the file's order; a key may stand in it twice."""

    line: int
    pairs: tuple[tuple[Scalar, "Tree"], ...]


Tree: TypeAlias = Scalar | Items | Fields


def parse(content: bytes, where: str) -> Tree | None:
    """The one document in `content`; None where there is nothing but comments.

    Args:
        content: The file.
        where: Stands before the error message.

    Raises:
        WebConfigError: It is not YAML, or refers to itself; or PyYAML is missing.
    """
    try:
        import yaml  # noqa: PLC0415 - see above
    except ModuleNotFoundError:
        words = "reading it needs the library pyyaml; run in a checkout: pip install '.[exporter]'"
        raise WebConfigError([f"{where}: {words}"]) from None
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
        return None if node is None else _Converter(where).tree(node)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        # What YAML quotes may be part of a secret.
        problem = _QUOTED.sub("...", error.problem or "cannot be read")
        raise WebConfigError([f"{where}{line}: not valid YAML: {problem}"]) from None
    except yaml.YAMLError:
        raise WebConfigError([f"{where}: not valid YAML: no text in UTF-8"]) from None
    except RecursionError:
        raise WebConfigError([f"{where}: nested too deeply"]) from None


class _Converter:
    def __init__(self, where: str) -> None:
        self._where = where
        self._done: dict[int, Tree] = {}
        self._inside: set[int] = set()

    def tree(self, node: "yaml.Node") -> Tree:
        """Each node once, however many aliases it has: a few lines of YAML can mean billions of nodes."""
        if id(node) in self._done:
            return self._done[id(node)]
        line = node.start_mark.line + 1
        if id(node) in self._inside:
            raise WebConfigError([f"{self._where}, line {line}: an alias that contains itself"])
        self._inside.add(id(node))
        self._done[id(node)] = found = self._convert(node, line)
        self._inside.remove(id(node))
        return found

    def _convert(self, node: "yaml.Node", line: int) -> Tree:
        import yaml  # noqa: PLC0415 - see above

        if isinstance(node, yaml.MappingNode):
            return Fields(line, tuple((self._key(key), self.tree(value)) for key, value in node.value))
        if isinstance(node, yaml.SequenceNode):
            return Items(line, tuple(self.tree(item) for item in node.value))
        return Scalar(line, str(node.value), node.tag.rpartition(":")[2])

    def _key(self, node: "yaml.Node") -> Scalar:
        key = self.tree(node)
        if not isinstance(key, Scalar):
            raise WebConfigError([f"{self._where}, line {key.line}: a field's name is one word"])
        return key
