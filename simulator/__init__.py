"""A GPU cluster on one machine, for the demo, the tests and the benchmarks.

It simulates what the two programs talk to: libnvidia-ml, the kubelet's PodResources socket and the Kubernetes API.
Neither program imports it.

Imports go one way: demo, __main__ > cluster > history > nodes > kube, gpus, workloads > spec.
"""
