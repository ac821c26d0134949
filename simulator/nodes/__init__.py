"""GPU nodes: the devices, sensors, processes and host files of a node, and its kubelet's PodResources service."""
