"""What is served, and to whom: server > auth > handlers > singleflight, request; webfile > tls, webconfig.

Must not know how anything was read.
"""
