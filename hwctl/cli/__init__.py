"""The terminal room: words, options, output. The only room that knows argv, the environment and exit statuses."""
