"""Figures of the manuals: named values from stored evidence, and how they are drawn.

A topic module registers its figures with `registry.figure`; a page names a figure
by id; the checks rebuild its values with `registry.build`.
"""
