"""Measurements → what is wrong with each workload, with the evidence. Pure; policy has no say here.

`findings` is the ordered list of what there is to find, one file each. They see a workload through `evidence`, doubt
it by `doubts`, and wait as its `rhythm` asks. `wanted` says which measurements are worth a second round of questions;
`autoscaling` writes what would do better than we.
"""

from rightsizer.assess.evidence import ran
from rightsizer.assess.findings import assess, freed
from rightsizer.assess.wanted import Wanted, wanted

__all__ = ["Wanted", "assess", "freed", "ran", "wanted"]
