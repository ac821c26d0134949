"""What is served, and to whom: server > connection, request > handlers > singleflight; web config, TLS, passwords.

Must not know how anything was read.
"""
