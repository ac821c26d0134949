"""Use of each GPU by process, and the pod of each process: attributor > ledger > shares, processowners.

procfs, cgroups and podnames find a process's pod. All but attributor, procfs and podnames are pure.
"""
