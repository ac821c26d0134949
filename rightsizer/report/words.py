"""Small phrases that tables and Events have in common. Pure."""


def count(number: int, thing: str = "GPU") -> str:
    """A number of things in words."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
