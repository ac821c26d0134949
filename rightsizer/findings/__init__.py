"""Measurements → what is wrong with each workload, with the evidence. Pure; policy has no say here.

`findings` is the ordered list of what there is to find, one file each. They see a workload through `evidence`, doubt
it by `doubts`, and wait as its `rhythm` asks. `wanted` and `narrow` say which measurements are worth more questions;
`autoscaling` writes what would do better than we.
"""

from rightsizer.findings.evidence import ran
from rightsizer.findings.finders import assess, freed
from rightsizer.findings.followup_queries import Wanted, narrow, wanted

__all__ = ["Wanted", "assess", "freed", "narrow", "ran", "wanted"]
