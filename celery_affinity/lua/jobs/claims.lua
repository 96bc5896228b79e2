-- claims: jobs held by a worker's slots, each with a fencing number that grows at every delivery.

-- RETURNS what a worker reads of a claimed job: facts in words, and the message as kombu sent it. The message is read
-- unless it is given: a client that only publishes needs no right to read messages. `expires`: false for never.
-- `run`: whose message it is, nil for its own. `lane`: that of a job that was moved (`move`),
-- which counts more than what the message says; else nil. `preemptions`, `requeues`: how often it was stopped, and
-- requeued; nil or false: never.
function claims.payload(id, fence, type, deliveries, enqueued, expires, message, run, lane, preemptions, requeues)
    local its_own = run or id
    message = message or redis.call("GET", key.message(its_own)) or ""
    local facts = id .. " " .. fence .. " " .. type .. " " .. deliveries .. " " .. enqueued
    local is_time = expires and string.find(expires, "^%d+$")
    if lane then
        facts = facts .. " " .. (is_time and expires or "-") .. " " .. lane
    elseif is_time then
        facts = facts .. " " .. expires
    end
    if preemptions and string.find(preemptions, "^%d+$") then -- else no worker could read the facts
        facts = facts .. " " .. protocol.WAS_PREEMPTED .. preemptions
    end
    if requeues then
        facts = facts .. " " .. protocol.WAS_REQUEUED .. texts.count(requeues)
    end
    return facts, message
end

-- RETURNS facts and message as one text: what an inbox has.
local function in_one(facts, message)
    return facts .. "\n" .. message
end

-- Puts what `claims.payload` returned into the inbox of `worker`.
function claims.put_into_inbox(worker, facts, message)
    redis.call("LPUSH", key.inbox(worker), in_one(facts, message))
end

-- RETURNS whether job `id`, which had no row, is nothing at all: somebody wrote its id into a lane.
local function is_nothing(id)
    if hooks.of(id).STANDS_FOR_CALLS or redis.call("EXISTS", key.message(id)) == 1 then
        return false
    end
    corrupt.record("job " .. id .. ", of which only its place in a lane was left, and no message: it is removed")
    return true
end

-- Gives a job of `type` to `worker`, whose slots `view` sees. `by`: the number of the release whose reply carries the
-- job; else false or nil. RETURNS the fencing number, the number of deliveries before, the time at which the job
-- expires, whether the job had a row, whether it was moved, and how often it was stopped; of a job that had a pause
-- also its enqueue time, and how often it was requeued. nil for a job that has expired, false for one of which neither
-- row nor message is left: it occupies no slot, and its fencing number is nobody's. Of a job that was never claimed or
-- moved, and does not expire, all this is known without a read.
function claims.grant(id, type, worker, view, by)
    local fence = string.format("%d", redis.call("INCR", key.fence))
    local new_fields
    if by then
        new_fields = redis.call("HSET", key.job(id), "state", "claimed", "worker", worker, "fence", fence,
            "claimed", call.now, "by", by) - 1
    else
        new_fields = redis.call("HSET", key.job(id), "state", "claimed", "worker", worker, "fence", fence,
            "claimed", call.now)
    end
    local deliveries, expires, is_moved, preemptions = "0", false, false, false -- no number: its text costs 2,000
    local rank, enqueued, requeues
    if new_fields < 3 then -- "claimed" stays when a job goes back; one that expires, or was moved, has it before
        deliveries, expires, is_moved, preemptions, rank =
            unpack(redis.call("HMGET", key.job(id), "deliveries", "expires", "moved", "preemptions", "rank"))
        deliveries = deliveries or 0
        if rank then
            enqueued, requeues = unpack(redis.call("HMGET", key.job(id), "enqueued", "requeues"))
            enqueued = enqueued and string.find(enqueued, "^%d+$") and enqueued
        end
        if expires and (tonumber(expires) or math.huge) <= call.now_us then
            redis.call("HDEL", key.job(id), "worker", "fence", "by")
            return nil
        end
    elseif new_fields > 3 and is_nothing(id) then
        redis.call("HDEL", key.job(id), "state", "worker", "fence", "claimed", "by")
        return false
    end
    view:occupy(worker, type) -- before the claim is written, which the view would count
    redis.call("HSET", key.claims(worker), id, fence)
    return fence, deliveries, expires, new_fields <= 3, is_moved, preemptions, enqueued, requeues
end

-- RETURNS whether `worker` holds `id` with this very fencing number. The job may have been taken back while the
-- worker was silent: a stale number changes nothing.
function claims.held(worker, id, fence)
    return redis.call("HGET", key.claims(worker), id) == fence
end

-- RETURNS what a worker read, or is to read, of a job that was claimed before, as `claims.payload` does; nil if
-- somebody deleted or overwrote what is known of it.
function claims.payload_again(id)
    local fence, type, deliveries, enqueued, expires, is_moved, lane, preemptions, requeues =
        unpack(redis.call("HMGET", key.job(id), "fence", "type", "deliveries", "enqueued",
            "expires", "moved", "lane", "preemptions", "requeues"))
    if not (fence and string.find(fence, "^%d+$") and corrupt.can_wait(type, lane, enqueued, deliveries)) then
        return nil
    end
    local run
    run, expires = hooks.of(id).runs(id, expires)
    return claims.payload(
        id, fence, type, deliveries or 0, enqueued, expires, nil, run, is_moved and lane, preemptions, requeues)
end

-- Removes a claim from the inbox of its worker. RETURNS whether it was there, and how many bytes were compared.
function claims.is_unread(worker, id)
    local facts, message = claims.payload_again(id)
    if not facts then
        return false, 0
    end
    local payload = in_one(facts, message)
    return redis.call("LREM", key.inbox(worker), 1, payload) == 1, #payload
end

-- What is read of a job that ends: of one without rules, of one with a hint alone, and of others.
local PLAIN, HINTED = { "fence", "acked", "task", "more" }, { "fence", "acked", "task", "more", "rules" }
local ALL = { "fence", "acked", "task", "more", "rules", "type", "stamps", "expires", "limited", "name" }

-- Removes a claim that has ended, if the fencing number is the claim's own, and frees what the job held. The caller
-- recounts the worker's free slots.
-- RETURNS what is known of the job, or nil; its type, stamps, expiry and name only if the job has other rules than a
-- hint, or more is to be forgotten of it.
function claims.remove(worker, id, fence)
    local mark = string.sub(id, -1)
    local is_marked = hooks.is_mark[mark]
    local fields = not is_marked and PLAIN or mark == protocol.HINTED and HINTED or ALL
    local its = key.job(id)
    local row = redis.call("HMGET", its, unpack(fields))
    local own_fence, has_more = row[1], row[4]
    local is_own = not own_fence or own_fence == fence -- without one the server has lost the job
    if not is_own or redis.call("HDEL", key.claims(worker), id) == 0 then
        return nil
    elseif has_more and fields ~= ALL then
        row, fields = redis.call("HMGET", its, unpack(ALL)), ALL
    end
    local known = {
        key = its, has_row = own_fence, acked = row[2] == "1", task = row[3],
        has_more = has_more, is_marked = is_marked,
    }
    if fields ~= PLAIN then
        known.rules = row[5]
    end
    if fields == ALL then
        known.type, known.stamps, known.expires, known.name = row[6], row[7], row[8], row[10]
        known.has_more = has_more or hooks.by_mark[id_suffix.of(id)] ~= nil -- of one that merges, another may be the task's
        hooks.free(id, known.type, row[9], known.rules, known.name)
    end
    return known
end
