-- repair_claims: fixes what workers hold, and the counter of fencing numbers.

-- Makes a job's row say what its claim does. If the row names another worker that holds the job, the claim is removed.
local function fix_claim(worker, id, fence)
    repair_jobs.fix_batch(id)
    if not sound.has_type(key.job(id), "hash") then
        return -- the release of the job finds nothing to end
    end
    local holder, its_fence, state = unpack(redis.call("HMGET", key.job(id), "worker", "fence", "state"))
    if holder == worker and its_fence == fence and state == "claimed" then
        return
    end
    if holder and holder ~= worker and redis.call("HGET", key.claims(holder), id) == its_fence then
        redis.call("HDEL", key.claims(worker), id)
    else
        redis.call("HSET", key.job(id), "worker", worker, "fence", fence, "state", "claimed", "claimed", call.now)
    end
    spoiled.record("the claim of job " .. id .. " by " .. worker)
end

-- Makes the counter at least `greatest`, a fencing number that was given.
local function fix_fence(greatest)
    local fence = redis.call("GET", key.fence)
    if greatest > 0 and not fence or fence and (not sound.is_whole(fence) or tonumber(fence) < greatest) then
        -- Greater than any that was given: nobody is given a thousand jobs each second since 1970.
        redis.call("SET", key.fence, string.format("%.0f", call.now_us / 1000))
        spoiled.record(key.fence .. ", made again")
    end
end

-- Fixes the claims of `worker`; if `thorough`, their jobs as well. RETURNS how many there are.
function repair_claims.fix(worker, thorough)
    if not sound.has_type(key.claims(worker), "hash") then
        return 0
    end
    local claimed, greatest = redis.call("HGETALL", key.claims(worker)), 0
    for i = 1, #claimed, 2 do
        local id, fence = claimed[i], claimed[i + 1]
        greatest = math.max(greatest, sound.is_whole(fence) and tonumber(fence) or 0)
        if thorough then
            repair_jobs.fix_job(id)
        end
        fix_claim(worker, id, fence)
        if sound.is_whole(fence) and redis.call("HGET", key.claims(worker), id) == fence then
            repair_keyed_jobs.fix_held(id, fence)
        end
    end
    fix_fence(greatest)
    return #claimed / 2
end
