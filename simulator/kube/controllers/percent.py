"""Numbers that may be given as a percentage of another. Pure."""


def share_of(value: int | str, total: int, *, round_up: bool) -> int:
    """An IntOrString such as 2 or "25%" as a number of `total`."""
    if isinstance(value, int):
        return value
    percent = int(value.removesuffix("%"))
    return -(-percent * total // 100) if round_up else percent * total // 100
