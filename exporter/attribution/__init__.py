"""Which process used how much of a GPU, and to which pod it belongs: attributor > ledger > shares, processowners.

procfs, cgroups and podnames find a process's pod. All but attributor, procfs and podnames are pure.
"""
