-- claims: mends what workers hold, and the counter of fencing numbers.
-- @include repair/jobs.lua
-- @include repair/keyed_jobs.lua

-- Makes a job's row say what its claim does. If the row names another worker that holds the job, the claim is removed.
local function mend_claim(worker, id, fence)
    mend_batch(id)
    if not has_type(key.job(id), "hash") then
        return -- the release of the job finds nothing to end
    end
    local holder, its_fence, state = unpack(redis.call("HMGET", key.job(id), "worker", "fence", "state"))
    if holder == worker and its_fence == fence and state == "claimed" then
        return
    end
    if holder and holder ~= worker and redis.call("HGET", key.claims(holder), id) == its_fence then
        redis.call("HDEL", key.claims(worker), id)
    else
        redis.call("HSET", key.job(id), "worker", worker, "fence", fence, "state", "claimed", "claimed", clock.now)
    end
    spoiled.record("the claim of job " .. id .. " by " .. worker)
end

-- Makes the counter at least `greatest`, a fencing number that was given.
local function mend_fence(greatest)
    local fence = redis.call("GET", key.fence)
    if greatest > 0 and not fence or fence and (not is_whole(fence) or tonumber(fence) < greatest) then
        -- Greater than any that was given: nobody is given a thousand jobs each second since 1970.
        redis.call("SET", key.fence, string.format("%.0f", clock.now_us / 1000))
        spoiled.record(key.fence .. ", made again")
    end
end

-- Mends the claims of `worker`; if `thorough`, their jobs as well. RETURNS how many there are.
local function mend_claims(worker, thorough)
    if not has_type(key.claims(worker), "hash") then
        return 0
    end
    local claimed, greatest = redis.call("HGETALL", key.claims(worker)), 0
    for i = 1, #claimed, 2 do
        local id, fence = claimed[i], claimed[i + 1]
        greatest = math.max(greatest, is_whole(fence) and tonumber(fence) or 0)
        if thorough then
            mend_job(id)
        end
        mend_claim(worker, id, fence)
        if is_whole(fence) and redis.call("HGET", key.claims(worker), id) == fence then
            mend_held(id, fence)
        end
    end
    mend_fence(greatest)
    return #claimed / 2
end
