"""A real node, of kubelet, containerd and runc, for tests."""
