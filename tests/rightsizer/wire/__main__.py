"""Lives random clusters, and counts what became of them."""

import argparse
import collections
import json
import pathlib
import sys
import tempfile
import time

from tests.rightsizer.wire.cluster import live


def main(first: int, count: int = 1, steps: int = 50) -> int:
    """Live them, and print the figures as JSON; 1 where something happened that must not."""
    counts: collections.Counter[str] = collections.Counter()
    ended: collections.Counter[str] = collections.Counter()
    violations: list[str] = []
    actions = requests = 0
    began = time.process_time()
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as directory:
            found = live(pathlib.Path(directory), seed, steps)
        actions, requests = actions + found.actions, requests + found.requests
        counts.update(found.counts)
        ended.update(found.ended)
        violations += found.violations
    figures = {
        "clusters": count,
        "steps": count * steps,
        "actions": actions,
        "requests": requests,
        "violations": len(violations),
        "cpu_s": round(time.process_time() - began),
        "what": dict(sorted(counts.items())),
        "ended": dict(sorted(ended.items())),
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    sys.stdout.write("".join(f"{one}\n" for one in violations))
    return 1 if violations else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, help="seed of the first cluster")
    parser.add_argument("count", type=int, nargs="?", default=1, help="clusters (default %(default)s)")
    parser.add_argument("steps", type=int, nargs="?", default=50, help="steps of each (default %(default)s)")
    sys.exit(main(**vars(parser.parse_args())))
