"""The ledger: what each cycle saw and did, kept as Parquet files, and summed up for a period."""

from collections.abc import Mapping

BY: Mapping[str, str] = {
    "team": "team",
    "owner": "owner",
    "namespace": "namespace",
    "class": "priority_class",
    "model": "model",
    "cluster": "cluster",
}
"""Columns of the ledger by which sums can be grouped."""
