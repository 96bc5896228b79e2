-- workers: mends the workers, some in a call: their inboxes, their claims, and the sums that they are part of.
-- @include repair/agreement.lua
-- @include repair/claims.lua
-- @include repair/sums.lua
local MOST_WORKERS = 100
local MOST_CLAIMS = 200 -- a call ends with the worker whose claims exceed this

-- Mends workers from the position `from` on. RETURNS the position to go on from, nil if those were all.
local function mend_workers(from, thorough)
    local claims_seen, agree, following = 0, true, nil
    for nth, worker in ipairs(redis.call("ZRANGE", key.joined, from, from + MOST_WORKERS - 1)) do
        has_type(key.inbox(worker), "list")
        has_type(key.nudges(worker), "list")
        claims_seen = claims_seen + mend_claims(worker, thorough)
        agree = does_agree(worker) and agree
        if claims_seen > MOST_CLAIMS or nth == MOST_WORKERS then
            following = from + nth
            break
        end
    end
    if not agree then
        make_sums()
    end
    return following
end
