from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return what an exception says, as Unicode text that can be stored; it never raises."""
    try:
        return printable(str(error))
    except Exception as broken:  # noqa: BLE001 - an error that cannot say what it is, is still one
        return f"it has no message: its __str__ raises {type(broken).__name__}"


def printable(text: str) -> str:
    """Return a text with its lone surrogates spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
