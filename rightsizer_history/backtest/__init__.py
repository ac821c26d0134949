"""Backtests of a policy: the stages of a plan, replayed over recorded history."""
