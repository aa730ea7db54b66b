"""The agent that runs inside the guest: standard library only, Python 3.6 to 3.14, imports nothing else of the package.

It is never installed: its source travels with each question over stdin, and nothing is written on the guest but the
run's marker under /run. Annotations are strings: `typing` costs start-up time, and Python 3.6 knows no newer way.
"""
