"""Reports in one file, to read and to pass on: what they say, and how that is written as HTML and Markdown."""
