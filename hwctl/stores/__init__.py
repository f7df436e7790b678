"""What lies on disk and how it is judged: the three families of store behind one protocol."""
