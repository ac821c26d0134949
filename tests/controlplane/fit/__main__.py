"""Checks random clusters: how often pods are stopped for one that fits then, in vain, and not though it would fit."""

import argparse
import collections
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from simulator.controlplane.programs import FIT, find
from tests.controlplane.fit.differential import Case, compare
from tests.controlplane.fit.scheduler import Scheduler


def main(number: int, first: int = 0, features: str = "") -> int:
    """Print what differs; 1 where somebody is stopped in vain."""
    began = time.process_time()
    with Scheduler(find([FIT])["fit"], features) as plugins:
        cases = list(compare(plugins, range(first, first + number)))
    vain, missed = [one for one in cases if one.is_in_vain], [one for one in cases if one.is_missed]
    served = [one for one in cases if one.stopped and one.fits]
    of_dra = sum("dra" in one.features for one in served)
    replaced = [one for one in cases if one.named]
    named = [one for one in replaced if one.is_named_in_vain]
    lines = [
        f"{number} clusters from seed {first}, {time.process_time() - began:.0f} CPU seconds and the plugins' own",
        f"a pod waits: {len(cases)}; served: {len(served)}, {of_dra} by DRA",
        f"in vain: {len(vain)}; would fit, not served: {len(missed)}",
        f"victims named by the extender: {len(replaced)}; in vain: {len(named)}",
        *_by_words("named in vain", named, lambda one: one.against),
        *_by_words("in vain", vain, lambda one: {reason for why in one.reasons.values() for reason in why}),
        *_by_words("not served", missed, lambda one: [one.why_not]),
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if vain or named else 0


def _by_words(title: str, cases: Sequence[Case], words_of: Callable[[Case], Iterable[str]]) -> Iterable[str]:
    """A line for each reason, with the seed of the simplest example."""
    by_words: dict[str, list[Case]] = collections.defaultdict(list)
    for case in cases:
        by_words["; ".join(sorted(words_of(case)))].append(case)
    for words, alike in sorted(by_words.items(), key=lambda item: -len(item[1])):
        simplest = min(alike, key=lambda one: (len(one.features), one.seed))
        yield f"{title}: {len(alike)}: {words} (seed {simplest.seed}: {', '.join(simplest.features)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane.fit", description=__doc__)
    parser.add_argument("number", type=int, help="clusters")
    parser.add_argument(
        "first", type=int, nargs="?", default=0, help="seed of the first one (default %(default)s)"
    )
    parser.add_argument(
        "--features", default="", help="features of Kubernetes to turn on or off, as name=true,..."
    )
    sys.exit(main(**vars(parser.parse_args())))
