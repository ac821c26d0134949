"""All that touches the NVIDIA driver: session > devices > codes; workers give calls a deadline.

Nothing outside this package imports pynvml, sees one of its handles or catches one of its errors.
"""
