"""Why is training slow? Measured on the user's machine, data and model: the stalls, and the one change to make."""
