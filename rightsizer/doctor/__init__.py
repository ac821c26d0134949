"""What stands between a person and a plan: asked of everything that plan, apply and undo need, judged, told.

asking > table > server | signals | coverage | permissions | policy | inventory > rights > facts > diagnosis

Only `asking` asks. Each row of the table is judged by facts alone, on its own: where one of them is not known, that row
is unknown, and no other. To add a check is to add a row to a family's file.
"""
