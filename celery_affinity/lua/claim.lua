-- claim: pending -> inbox. Moves the best pending jobs to their most specialised free slots; other arrows end with
-- the same move, this one goes on where one answered `more`.
-- RETURNS {more}
-- Cost: that of `fill`; without types it grows with the profiles, and with the types that free slots serve.
-- @include lib/keys.lua
-- @include lib/full.lua
-- @include lib/settings.lua
-- @include lib/fill.lua
-- @include lib/view.lua

-- ARGV[1..]: types, encoded; none: all that a free slot serves

local function served_by_free_slots()
    local types, seen = {}, {}
    local free = redis.call("HGETALL", key.free_slots)
    for i = 1, #free, 2 do
        if tonumber(free[i + 1]) > 0 then
            for type in string.gmatch(redis.call("HGET", key.profiles, free[i]) or "", "%S+") do
                types[#types + 1] = not seen[type] and type or nil
                seen[type] = true
            end
        end
    end
    return types
end

return { fill(#ARGV > 0 and ARGV or served_by_free_slots(), "", read_settings(), slots.view())[1] }
