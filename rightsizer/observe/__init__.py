"""The edges that read: Prometheus, the API server, and what is made of their answers.

`prometheus` and `cluster` are the only doors to the two; `inventory` turns API objects into workloads, `signals` turn
series into usage.
"""
