-- claim: pending -> inbox. Moves the best pending jobs to their most specialised free slots; other arrows end with
-- the same move, this one goes on where one answered `more`.
-- RETURNS {more}
-- Cost: that of `fill`; without types it grows with the types that wait and are served.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/settings.lua
-- @include lib/fill.lua

-- ARGV[1..]: types, encoded; none: all that wait, or all that are served, whichever are fewer
local types = ARGV
if #types == 0 then
    local fewer = redis.call("HLEN", key.heads) < redis.call("HLEN", key.capacity) and key.heads or key.capacity
    types = redis.call("HKEYS", fewer)
end
return { fill(types, "", read_settings())[1] }
