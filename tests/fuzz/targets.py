"""The table of targets: one row for each parser that reads what others write."""

from tests.fuzz import exporter_targets, rightsizer_targets
from tests.fuzz.fuzz_target import FuzzTarget

TARGETS: dict[str, FuzzTarget] = {
    target.name: target for target in (*exporter_targets.TARGETS, *rightsizer_targets.TARGETS)
}
