"""What several results have in common."""

from typing import Literal

Method = Literal["robust", "paper"]
