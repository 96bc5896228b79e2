-- named: mends what an arrow that failed was called with, and what it may have met on its way.
-- @include generated/kinds.lua
-- @include repair/jobs.lua
local CACHE_BYTES = 72 -- nine numbers, as `best_heads` writes them

-- `names`: ids, task ids, workers, stamps and other arguments of the arrow, from the one at `first` on.
local function mend_named(names, first)
    for i = first, #names do
        local name = names[i]
        if #name <= protocol.LONGEST_NAME then
            for _, kind in ipairs(KINDS) do
                if kind.of_each then
                    has_type(base .. kind.name .. name, kind.kind)
                end
            end
            mend_job(name)
            mend_jobs(redis.call("ZRANGE", key.stamped(name), 0, 99))
            mend_jobs_of_task(name)
            mend_jobs({ redis.call("GET", key.task(name)) or nil })
            mend_jobs(redis.call("ZRANGE", key.jobs_of_task(name), 0, 99))
        end
    end
    for _, index in ipairs({ key.scheduled, key.expires, key.untold, key.dead }) do
        mend_jobs(redis.call("ZRANGE", index, 0, 99))
    end
    keep_fields(key.leaders, function(cache)
        return #cache == CACHE_BYTES
    end)
    redis.call("UNLINK", key.leaders) -- claims compare the heads again
end
