"""Three customers share a fleet that reads documents. One customer floods the fleet: how long do the others wait?"""
