"""The Kubernetes API: client, API object structs, owner references, ConfigMaps and the Lease."""
