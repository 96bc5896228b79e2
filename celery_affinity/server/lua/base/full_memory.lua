-- full: lets an arrow run on a server whose memory is full. There the first write of a script is refused if it may
-- grow memory, and no later one; so the first is one that only frees.
redis.call("UNLINK", base .. "nothing")
