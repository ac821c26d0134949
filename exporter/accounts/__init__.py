"""Who used how much of a device since the exporter started: tenants, shares > ledger > books.

All of it is arithmetic on records: it knows no driver, no /proc, no kubelet and no clock.
"""
