"""Reports in one file, to read and to pass on: their content, and how it is written as HTML and Markdown."""
