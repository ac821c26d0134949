"""Plans from findings and policy: decisions within budgets, capacity and cooldowns."""
