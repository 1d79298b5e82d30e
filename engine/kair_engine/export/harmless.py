"""Makes texts of a trace safe in CSV; used by exports and by queries, which load no analysis for it."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

_UNSAFE: Final = (
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e0fff]"
)
"""Controls of terminals, and what turns text around."""
_FORMULA: Final = "^[=+\\-@＝＋－＠]"


def harmless(name: str) -> "pl.Expr":
    """Return a column of texts that neither a terminal nor a spreadsheet obeys, under its name."""
    import polars as pl

    text = pl.col(name).str.replace_all(_UNSAFE, "\ufffd")
    return pl.when(text.str.contains(_FORMULA)).then("'" + text).otherwise(text).alias(name)
