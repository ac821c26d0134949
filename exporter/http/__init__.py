"""Pages that are served, and to whom: server > auth > handlers; connection, messages; webfile > webconfig.

Must not know how anything was read.
"""
