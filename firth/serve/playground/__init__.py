"""The playground: a page that calls the routes of the server, and the routes that only it needs."""
