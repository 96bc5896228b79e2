-- joined: pages of workers, for what is done to each of them, some in one call of a script.
-- @include base/clock.lua

-- RETURNS at most `most` workers that joined at `from`, µs, or later, and where the next page begins; nil if there is
-- none. A page may begin with the worker that ended the one before.
local function joined(from, most)
    local page = redis.call("ZRANGEBYSCORE", key.joined, from, "+inf", "WITHSCORES", "LIMIT", 0, most)
    local workers = {}
    for i = 1, #page, 2 do
        workers[#workers + 1] = page[i]
    end
    if #workers < most then
        return workers, nil
    end
    local last = page[#page]
    return workers, last ~= from and last or clock.text(tonumber(last) + 1)
end
