"""What a scan of events tells: why it ended, the columns of its rows, and what values of arguments are looked at.

Machine code keeps these numbers: whoever changes one, touches scan.py, template_match.py and template_store.py.

What the scan of events tells of those it parsed, so that others like them need not be parsed.

A mark for each number that may differ, and for the name, in the order in which they stand in the event; last one for
the event itself. Machine code keeps these numbers: whoever changes one, touches scan.py, template_match.py and
template_store.py.
"""

from typing import Final

# What became of a scan.
DONE: Final = 0
NO_ROOM: Final = 1
"""The columns are full: what is in them has to be taken, and the scan goes on."""
UNKNOWN: Final = 2
"""Something in the text is not known for sure."""
ENOUGH: Final = 3
"""As many events as were asked for are parsed."""

# Of rows, each a column of an array: numbers of an event, the places of its texts and of its arguments, and its own.
START: Final = 0
DURATION: Final = 1
CORRELATION: Final = 2
EXTERNAL_ID: Final = 3
SIZE: Final = 4
ODD: Final = 5
"""Which times are not written as plain numbers or not there, in bits: 1 the start, 2 the duration."""
TS: Final = 6
DUR: Final = 8
NAME: Final = 10
CAT: Final = 12
PID: Final = 14
TID: Final = 16
ARGS: Final = 18
PH: Final = 20
EVENT: Final = 22
"""From TS on two for each: begin and end."""
SHAPE: Final = 23
PARSED: Final = 24
NUMBER: Final = 25
"""The whole number in the first text of its inputs, or in the second behind an empty one; -1 for none."""
COLUMNS: Final = 26

# Values of arguments that go into no column.
OTHER: Final = -1
MAYBE_INTEGER: Final = -2
MAYBE_TEXT: Final = -3
INPUTS: Final = -4


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
MARK_COLUMNS: Final = 7

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
