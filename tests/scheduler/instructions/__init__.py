"""What each arrow costs the server, in instructions: a number that does not depend on how busy the machine is.

make instructions                              # measured beside what is recorded, for each server that is installed
make instructions ARGS=--record                # the new numbers are right: keep them
"""
