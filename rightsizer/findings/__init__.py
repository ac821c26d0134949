"""Measurements become findings: what is wrong with each workload, with the evidence. Pure; independent of policy rules.

`finders` has the ordered list of findings, one file each. `followup_queries` says what else must be measured.
"""
