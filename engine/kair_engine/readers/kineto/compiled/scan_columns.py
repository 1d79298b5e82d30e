"""What a scan of events tells: why it ended, the columns of its rows, and what values of arguments are looked at.

Machine code keeps these numbers: whoever changes one, touches scan.py, template_match.py and template_store.py.
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
