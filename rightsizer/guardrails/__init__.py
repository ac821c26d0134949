"""RBAC and admission policies that keep the service account within the policy, even if gpu-rightsizer has a bug."""
