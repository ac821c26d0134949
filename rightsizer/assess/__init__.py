"""Measurements → what is wrong with each workload, with the evidence. Pure; policy has no say here.

`findings` is the ordered list of what there is to find, one file each. They see a workload through `evidence`, doubt
it by `doubts`, and wait as its `rhythm` asks. `wanted` and `narrow` say which measurements are worth more questions;
`autoscaling` writes what would do better than we.
"""

from rightsizer.assess.evidence import ran
from rightsizer.assess.findings import assess, freed
from rightsizer.assess.narrow import narrow
from rightsizer.assess.wanted import Wanted, wanted

__all__ = ["Wanted", "assess", "freed", "narrow", "ran", "wanted"]
