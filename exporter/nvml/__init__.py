"""Access to the NVIDIA driver: session > devices > codes; workers give calls a deadline.

No other package imports pynvml, uses its handles or catches its errors.
"""
