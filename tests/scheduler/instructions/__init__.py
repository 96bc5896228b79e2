"""Cost of each server function in instructions, which do not depend on the load of the machine.

make instructions                              # compare with the recorded numbers, for each installed server
make instructions ARGS=--record                # record the new numbers
"""
