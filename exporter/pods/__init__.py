"""Devices of each pod: tracker > podresources > grpc > protobuf (kubelet), apiserver > apihttp > apiaccess.

Only tracker knows both sources. allocations, claimants, deviceids, podfacts and protobuf are pure. A failure here costs
labels, never series.
"""
