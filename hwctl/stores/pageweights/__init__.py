"""Process-shared page-weights cache: locator, receipt and artifact per authority, LRU to a byte budget."""
