"""Types that several results share."""

from typing import Literal

Method = Literal["robust", "paper"]
