"""What is served, and to whom: server > connection, request > site > renders; web configuration, TLS and passwords.

Must not know how anything was read.
"""
