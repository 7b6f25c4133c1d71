"""The routes of the server, one file per group; each handler takes checked fields."""
