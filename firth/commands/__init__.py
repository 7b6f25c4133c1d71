"""The verbs of the command line, and how what they find looks in a terminal."""
