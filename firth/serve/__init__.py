"""`firth serve`: an HTTP server with OpenAI-compatible and own routes, and a playground page."""
