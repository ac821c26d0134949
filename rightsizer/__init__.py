"""The rightsizer: finds GPU workloads that use less than they hold, and gives the rest back within a policy.

Data flows one way: cli > loop > apply | undo | report > look > validate > decide > assess > workloads | policy >
observe > config | model | errors.
"""
