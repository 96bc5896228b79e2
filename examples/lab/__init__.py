"""The lab on real input: a fleet is recorded, a change is computed, made, and measured.

    python -m examples.lab [--docs FOLDER] [--seconds 60]

Read `asking.py` first: it is what the lab is asked. The rest runs the fleet, and tells what came out.
"""
