"""The Grafana dashboard and the recording rules that it asks, each written from a table.

    promql ──► rules ──────────────┬──► deploy/prometheus/dashboard-rules.yaml
    panels ──► rows ──► grafana ───┴──► dashboards/grafana.json

Imports nothing of the two programs: what a cluster has is a Prometheus. `python -m dashboards` writes both files.
"""
