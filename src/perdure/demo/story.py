from __future__ import annotations

from typing import Final

ORDER: Final = "A-1042"
PAID_CENTS: Final = 4900
RUN_ID: Final = f"refund-{ORDER}"
QUESTION: Final = f"The lamp of order {ORDER} arrived broken. I want my money back."
INSTRUCTIONS: Final = (
    "You answer customers of a shop. When something arrived broken: look up the order and track"
    " its parcel, then refund what was paid, then ask when the fifth bank day from now is, and"
    " then tell the customer in two or three sentences what happens. Ask nothing back."
)
ANSWER: Final = (
    f"I am sorry about the broken lamp. I have refunded {PAID_CENTS / 100:.2f} EUR for order"
    f" {ORDER}; the money is on your account within five bank days. You can keep the lamp, no need"
    " to send it back."
)


def refunded(order: str, cents: int) -> str:
    """Return what the refund tool says when it has paid."""
    return f"refunded {cents} cents for order {order}"
