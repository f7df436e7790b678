"""hwctl publishes, verifies and reclaims model-weight stores on a node.

Rooms, each importing only those to its right: ``cli -> core -> stores -> weights -> fs``, with
``errors`` below them all. This file owns the version number and nothing else.
"""

__version__ = "0.1.0"
