"""Checks of everything that plan, apply and undo need.

Only `examination` sends requests. Each check judges facts alone: an unknown fact makes only its own checks unknown.
To add a check, write its messages, and its function below them.
"""
