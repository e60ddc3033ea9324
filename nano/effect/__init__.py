"""How many points a night can give nano, at which cost, by which method: see README.md."""
