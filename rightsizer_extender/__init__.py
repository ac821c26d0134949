"""The scheduler extender: names pods that kube-scheduler may preempt, by plans that the core makes.

Imports the core; the core never imports it.
"""
