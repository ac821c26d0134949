"""How many modules of gpu-rightsizer one plan of three workloads enters: a function of theirs runs, after the imports.

The API server is simulated, Prometheus is real. --list prints the modules, each with the number of its functions.
"""

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

from simulator.prometheus import Prometheus
from tests.rightsizer.commands import Run
from tests.rightsizer.world import World

ROOT = Path(__file__).parents[1]
PACKAGE = f"{ROOT / 'rightsizer'}/"
WORKLOADS = {"Deployment": "idle", "Job": "busy", "StatefulSet": "light"}
POLICY = ROOT / "deploy" / "examples" / "policy.yaml"


def functions_entered(run: Callable[[], Run]) -> Counter[str]:
    """Functions that ran, in any thread, by module; those that ran only to import a module do not count."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code not in seen and _is_ours(frame) and not _is_importing(frame):
            seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        done = run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert done.code == 0, done.err
    return Counter(code.co_filename.removeprefix(PACKAGE) for code in seen)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _is_importing(frame: FrameType) -> bool:
    """Whether the frame is a module's body, or was called by one."""
    above: FrameType | None = frame
    while above is not None:
        if _is_ours(above) and above.f_code.co_name == "<module>":
            return True
        above = above.f_back
    return False


def main() -> int:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--list", action="store_true", help="print every module that is entered")
    is_listed: bool = parser.parse_args().list
    everything = sum(1 for _ in Path(PACKAGE).rglob("*.py"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Prometheus(folder / "prometheus") as prometheus, World(folder, prometheus) as world:
            for kind, usage in WORKLOADS.items():
                world.add(kind, world.team, kind.lower(), {"usage": usage, "replicas": 2})
            for title, policy in (
                ("without a policy", None),
                ("with the example policy", POLICY.read_text()),
            ):
                entered = functions_entered(partial(world.run, "plan", policy=policy))
                print(f"plan of {len(WORKLOADS)} workloads {title}: {len(entered)} of {everything} modules")
                for module, functions in sorted(entered.items() if is_listed else ()):
                    print(f"  {module}: {functions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
