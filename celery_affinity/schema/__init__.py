"""What the fleet stores in Redis: keys, job hashes, the codec of rules, constants shared with Lua. Pure Python."""
