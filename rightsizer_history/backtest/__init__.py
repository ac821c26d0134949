"""What a policy would have done: the stages of a plan, replayed over recorded history."""
