"""Who is on which device: attribution > podresources > grpc > wire (the kubelet), apiserver > apihttp > apiaccess.

Only attribution knows both sources. processes > cgroups say to which pod a process belongs.
cgroups, claimants, deviceids, join and podfacts are pure. A failure here costs labels, never series.
"""
