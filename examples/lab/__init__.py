"""The lab on a real fleet: record the fleet, predict the effect of a change, make the change, and measure it.

    python -m examples.lab [--docs FOLDER] [--seconds 60]

Read `queries.py` first: it has the calls to the lab. The other modules run the fleet and print the results.
"""
