"""From findings and policy to a plan: decisions within budgets, capacity and cooldowns."""
