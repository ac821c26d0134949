"""A real Kubernetes control plane on loopback: etcd, API server, controllers, scheduler, and kwok for the kubelets.

No container engine is needed: the programs are built from their released Go modules (`programs`, `build`), started with
certificates of their own (`certificates`, `plane`), and end with the process that started them.
"""
