"""The price of a GPU hour and its currency, which every amount that follows from it keeps."""

import re
from typing import Final

from kair_engine.errors import UsageError

_PRICE: Final = re.compile(r"([A-Za-z]{3}|[€£$])? ?(\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+) ?([A-Za-z]{3}|[€£$])?")
_CODES: Final = {"€": "EUR", "£": "GBP"}


class GpuCost(float):
    """A price, as the number that it is; equal to another only in the same currency."""

    currency: str | None
    """The code of ISO 4217, such as `USD`; None where none was given."""

    def __new__(cls, amount: float, currency: str | None = None) -> "GpuCost":
        """Make it of an amount and its currency."""
        made = super().__new__(cls, amount)
        made.currency = currency
        return made

    @classmethod
    def of(cls, price: "float | str") -> "GpuCost":
        """Return what `2.5`, `2.5USD`, `EUR 2.5` or a number says. Raises UsageError for anything else."""
        if not isinstance(price, str):
            return cls(price, currency_of(price))
        found = _PRICE.fullmatch(price.strip())
        if found is None or (found[1] and found[3]):
            raise UsageError(f"{price!r} is no price of a GPU hour", "2.5, or 2.5USD with its currency")
        named = found[1] or found[3]
        if named == "$":
            raise UsageError("several currencies are dollars", "name the one that it is: 2.5USD")
        return cls(float(found[2]), _CODES.get(named, named.upper()) if named else None)

    def __str__(self) -> str:
        """Return it as one types it."""
        return f"{float(self):g}{self.currency or ''}"

    def __repr__(self) -> str:
        return float.__repr__(self) + (self.currency or "")

    def __eq__(self, other: object) -> bool:
        return float.__eq__(self, other) is True and self.currency == currency_of(other)

    def __hash__(self) -> int:
        return float.__hash__(self)

    def __getnewargs__(self) -> tuple[float, str | None]:  # type: ignore[override]
        return float(self), self.currency


def currency_of(price: object) -> str | None:
    """Return the currency of a price, None of a plain number and of none."""
    return getattr(price, "currency", None)
