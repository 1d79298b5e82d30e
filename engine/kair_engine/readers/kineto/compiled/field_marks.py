"""What the scan of events tells of those it parsed, so that others like them need not be parsed.

A mark for each number that may differ, and for the name, in the order in which they stand in the event; last one for
the event itself. Machine code keeps these numbers: whoever changes one, touches scan.py, template_match.py and
template_store.py.
"""

from typing import Final

# Columns: where it begins and ends, and what it is.
BEGIN: Final = 0
END: Final = 1
WHAT: Final = 2
ARGS_BEGIN: Final = 3
ARGS_END: Final = 4
"""These and the next of an event alone: where its arguments stand, else -1."""
WITHOUT: Final = 5
"""Which times it does not have, in bits as in a scan."""
ROW_NUMBER: Final = 6
COLUMNS: Final = 7

# What a mark is of: up to SIZE, the column of a scan for which it is a number.
AN_INTEGER: Final = 5
"""A whole number that goes nowhere."""
A_NUMBER: Final = 6
A_NAME: Final = 7
NOTHING: Final = 8
A_TEXT: Final = 9
"""A whole number, without a sign, between the quotes of a text."""
ROW: Final = 10
"""An event that becomes a row."""
NO_ROW: Final = 11
