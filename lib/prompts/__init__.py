"""Prompts of tokens: attention on them in bounded memory, and errors measured on them, with intervals.

May use: lib.tokens.
"""
