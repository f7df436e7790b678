"""Words, options, output: the only room that knows a terminal, the environment and exit statuses."""
