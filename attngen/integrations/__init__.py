"""Adapters to libraries that have a place for an attention of one's own. One module a library, each imported by name.

Nothing in attngen imports them, and each may import its library when it is imported itself.
"""
