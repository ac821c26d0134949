"""What keeps our service account within the policy also where our own code is wrong: RBAC, and admission policies."""
