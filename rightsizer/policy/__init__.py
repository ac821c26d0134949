"""What may be done to whom: the policy file, its ordered rules and the protections that no file can lift. Pure.

`document` is the file's shape, `reading` turns text into it with a line for every problem, `rules` answers for a
workload which rule holds and what stands against acting.
"""
