"""Files, streams, worker processes, random numbers, devices and errors."""
