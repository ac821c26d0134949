"""The rightsizer: finds GPU workloads that use less than they hold, and gives the rest back within a policy.

Data flows one way: cli > loop > act > report > look > validate > breaker | budget > decide > assess | holdoff >
workloads | policy > observe > config | model | errors.
"""
