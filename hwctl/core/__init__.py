"""One module per verb, written once over the Store protocol; no terminal, no environment."""
