"""A GPU cluster on one machine, for the demo, the tests and the benchmarks.

It plays the outside world on the far side of each wire: libnvidia-ml at its C symbols, the kubelet's PodResources
socket, the Kubernetes API over HTTP, and workloads whose ground truth is known. Neither program imports it.

Data flows one way: demo | __main__ > cluster > history | node > driver | kube > archetypes > cards | spec.
"""
