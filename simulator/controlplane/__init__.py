"""A real Kubernetes control plane on loopback, without containers; kwok simulates the kubelets."""
