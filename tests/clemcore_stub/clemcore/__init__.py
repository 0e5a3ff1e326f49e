"""A stand-in for the part of clemcore that worker.py and the tests' game use."""
