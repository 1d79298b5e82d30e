"""The board: recordings whose truth is known, most of it told by others, and what each tool says of them.

python -m validation.board --copies DIR [--hta-python PYTHON] [--tracelens-python PYTHON] [--write]

recordings.json lists them by repository, commit and digest; nothing of them is copied into the project. DIR holds a
git directory or a checkout of each repository at DIR/OWNER/NAME. What is not there is skipped with a line.
"""
