"""Who is on which device: attribution > podresources > grpc > wire (the kubelet), apiserver > apihttp > apiaccess,
processes > cgroups.

Only attribution knows all sources. cgroups, claimants, deviceids, join and podfacts are pure. A failure here costs
labels, never series.
"""
