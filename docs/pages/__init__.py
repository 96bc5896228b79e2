"""The pages of the reference that are made from the code, and the pictures: ``python -m docs.pages`` writes them.

Each module has a page's text as `page`, or a picture's as `draw`. A test compares what they make with the files.
"""
