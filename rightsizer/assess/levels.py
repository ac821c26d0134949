"""What was measured, in one sentence. Pure."""

from rightsizer.assess.evidence import Evidence
from rightsizer.assess.words import GIB, percent
from rightsizer.model import FindingName, Verdict


def levels(evidence: Evidence) -> str:
    """Activity, power, memory and coverage over all devices."""
    finding = evidence.finding(FindingName.BUSY, Verdict.KEEP, ())
    parts = [f"activity mean {percent(finding.activity_mean)}, peak {percent(finding.activity_peak)}"]
    if finding.power_peak_w is not None:
        parts.append(f"power peak {finding.power_peak_w:.0f} W")
    if finding.memory_peak_bytes is not None:
        parts.append(f"memory peak {finding.memory_peak_bytes / GIB:.1f} GiB")
    parts.append(f"coverage {finding.coverage:.0%}")
    return ", ".join(parts)
