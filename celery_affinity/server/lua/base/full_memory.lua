-- full_memory: lets an arrow run on a server whose memory is full. Such a server refuses a script's first write if this
-- may grow memory, and no later one. So the first write is one that only frees.
redis.call("UNLINK", base .. "nothing")
