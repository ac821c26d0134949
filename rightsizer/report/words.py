"""Small phrases that tables, messages and Events have in common, and what may reach a terminal. Pure."""


def count(number: int, thing: str = "GPU") -> str:
    """A number of things in words."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def safe(text: str) -> str:
    """Text without control characters, which a terminal would obey (CSI, OSC, carriage return)."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def safe_lines(text: str) -> str:
    """The same, of a text whose lines are our own."""
    return "\n".join(map(safe, text.split("\n")))
