"""Who is on which device: kubelet (source) > podresources > grpc > wire; deviceids and join are pure.

A failure here costs labels, never series.
"""
