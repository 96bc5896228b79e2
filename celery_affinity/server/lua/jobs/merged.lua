-- merged: the way to what merges calls, deferred: most calls of a script meet no job that does.
-- @include jobs/with_rules.lua
-- @include jobs/marks.lua
local merging_ways -- the functions of merging.lua, once a call has met a job that merges

-- Does for job `id` what the function `does` of merging.lua does.
local function of_merging(does, ...)
    if not merging_ways then
-- @deferred jobs/merging.lua
        merging_ways = { enter = merging.enter, close = merging.close, let_go = merging.let_go,
            remove = merging.remove, vanish = merging.vanish }
    end
    return merging_ways[does](...)
end

-- Lets no further call join job `id`, of which all else is known.
local function close_merging(id, type, rules, name)
    if marks.is_mergeable(id) then
        of_merging("close", id, type, rules, name)
    end
end
