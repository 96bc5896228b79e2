-- repair_workers: fixes the workers, some in a call: their inboxes, their claims, and the sums that they are part of.
local MOST_WORKERS = 100
local MOST_CLAIMS = 200 -- a call ends with the worker whose claims exceed this

-- Fixes workers from the position `from` on. RETURNS the position to go on from, nil if those were all.
function repair_workers.fix(from, thorough)
    local claims_seen, agree, following = 0, true, nil
    for nth, worker in ipairs(redis.call("ZRANGE", key.joined, from, from + MOST_WORKERS - 1)) do
        sound.has_type(key.inbox(worker), "list")
        sound.has_type(key.nudges(worker), "list")
        claims_seen = claims_seen + repair_claims.fix(worker, thorough)
        agree = agreement.of_worker(worker) and agree
        if claims_seen > MOST_CLAIMS or nth == MOST_WORKERS then
            following = from + nth
            break
        end
    end
    if not agree then
        repair_sums.make()
    end
    return following
end
