-- repair_named: fixes what an arrow that failed was called with, and what it may have met on its way.
local CACHE_BYTES = 72 -- nine numbers, as `best_heads` writes them

-- `names`: ids, task ids, workers, stamps and other arguments of the arrow.
function repair_named.fix(names)
    for _, name in ipairs(names) do
        if #name <= protocol.LONGEST_NAME then
            for _, kind in ipairs(protocol.KINDS) do
                if kind.of_each then
                    sound.has_type(key.base .. kind.name .. name, kind.kind)
                end
            end
            repair_jobs.fix_job(name)
            repair_jobs.fix_jobs(redis.call("ZRANGE", key.stamped(name), 0, 99))
            repair_jobs.fix_jobs_of_task(name)
            repair_jobs.fix_jobs({ redis.call("GET", key.task(name)) or nil })
            repair_jobs.fix_jobs(redis.call("ZRANGE", key.jobs_of_task(name), 0, 99))
        end
    end
    for _, index in ipairs({ key.scheduled, key.expires, key.untold, key.dead }) do
        repair_jobs.fix_jobs(redis.call("ZRANGE", index, 0, 99))
    end
    sound.keep_fields(key.leaders, function(cache)
        return #cache == CACHE_BYTES
    end)
    redis.call("UNLINK", key.leaders) -- claims compare the heads again
end
