"""Three customers share a fleet that reads documents. One of them floods it: how long do the others wait?"""
