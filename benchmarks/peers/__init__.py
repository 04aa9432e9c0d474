"""The same work by others. Their packages are imported in processes of their own, and only there.

`catalog` says what there is and prepares its place, `host` is the program that works, `beside`
measures, and `comparison` shows what came of it.
"""
