-- fair_share: decides which tenant's job is claimed next, by the slot-time that each tenant has used. This is
-- start-time fair queueing (SFQ; Goyal, Vin, Cheng 1996) over slots, for several types (docs/internals/proofs.md). A
-- class is a mode and a priority, which name a lane. Jobs without a tenant count as one tenant with an empty name.
-- Each tenant has a start tag per class and type: the slot-time in µs, divided by its weight, that its jobs of the
-- class were charged, whatever their types, plus a constant. Its candidate is its oldest job in the lane of the class
-- and type. The best job by score selects the class. Of the candidates of this class, over all types with a free slot,
-- the one with the smallest start tag selects the tenant; of this tenant, the best candidate by score is claimed.
-- The clock of a class and type is the greatest start tag of a turn taken by a slot that serves the type. A new
-- candidate starts at the clock or later, so idleness earns nothing. With a half-life (`half_life`), old use weighs
-- less. All start tags of a tenant in a class are then equal, so a quiet tenant is preferred until it has caught up,
-- and there are no clocks.
-- A claim charges the usual slot-time of the job's type. The job's end corrects it by the actual slot-time: a longer
-- run is charged, a shorter one becomes credit for the tenant's next claims. So start tags only grow.
--   Sorted set `turns`: the candidates of a type and lane by start tag.
--   Sorted set `untenanted`: the jobs of a lane that have no tenant.
--   String `share`: credit, decayed use, start tags and candidates of a tenant in a class (`read_share`).
--   Sorted set `clocks`: lanes and types by clock.
--   Hash `unlisted`: lanes whose jobs were waiting when fair shares began -> the time up to which they are listed.
--
-- Cost: one command per type for a turn, about ten per claim and per end; O(log n) in tenants and jobs.
local UNTENANTED = protocol.TENANT_PREFIX -- the key of jobs without a tenant
fair_share.FIELD = "!shares" -- the field of key `type_rules` that is set while tenants have fair shares

-- Returns the tenant key of job `id`, UNTENANTED if it has none.
local function tenant_of(id)
    return key_state.tenant_key_of(id) or UNTENANTED
end

-- Returns a number as text, without loss.
local function exact(number)
    return string.format("%.17g", number)
end

-- Returns the number in `text`, or 0 for a text that another client wrote: Redis refuses a NaN as a score.
local function number_in(text)
    local number = tonumber(text or nil)
    return number and number >= 0 and number < math.huge and number or 0
end

-- Returns the share of a tenant in the class of `lane`, as a table:
--   credit: slot-time (µs) that was charged and not used.
--   use: the decayed use with a half-life, otherwise 0.
--   running: number of its claimed jobs.
--   of: type -> start tag (`start`), and enqueue time and id of its candidate, if it has one (`enqueued`, `id`).
--     `is_new`, `before`: if the present candidates came in this invocation and none was claimed: true if there was no
--     start tag, and the start tag before. A candidate that leaves again in the same invocation changes nothing.
--   is_changed: true if `fair_share.write_changed` must write it.
local function read_share(lane, job_key)
    local name = key.share(lane, job_key, (tenants.shares()))
    local keys = key_state.cache()
    keys.shares = keys.shares or {}
    local shares = keys.shares
    local share = shares[name]
    if not share then
        local text = redis.pcall("GET", name) or ""
        text = type(text) == "table" and "" or text -- an error: another kind of value
        local credit, use, running = string.match(text, "^(%d+) (%S+) (%d+)")
        share = {
            name = name, lane = lane, key = job_key, is_changed = false, of = {},
            text = text, credit = number_in(credit), use = number_in(use), running = number_in(running),
        }
        for job_type, start, candidate in string.gmatch(text, "\n(%S+) (%S+) ?([^\n]*)") do
            local enqueued, id = string.match(candidate, "^(%d+) (%S+)$")
            share.of[job_type] = { start = number_in(start), enqueued = enqueued, id = id }
        end
        shares[name] = share
    end
    return share
end

-- Removes start tags without a candidate that cannot matter again: those that the clock has reached, unless a job of
-- the tenant is running, whose end can add to them; with a half-life, all. Returns true if any was removed.
local function remove_old_starts(share)
    local _, half_life_us = tenants.shares()
    local idle, names = {}, {}
    for type, entry in pairs(share.of) do
        if not entry.id and (half_life_us > 0 or share.running == 0) then
            idle[#idle + 1], names[#names + 1] = type, share.lane .. " " .. type
        end
    end
    local has_removed = false
    local clocks = half_life_us == 0 and names[1] and redis.call("ZMSCORE", key.clocks, unpack(names)) or {}
    for nth, type in ipairs(idle) do
        if half_life_us > 0 or share.of[type].start <= (tonumber(clocks[nth] or nil) or 0) then
            share.of[type], has_removed = nil, true
        end
    end
    return has_removed
end

-- Returns a share as text.
local function text_of(share)
    local lines = {}
    for type, entry in pairs(share.of) do
        lines[#lines + 1] = type .. " " .. exact(entry.start)
            .. (entry.id and " " .. entry.enqueued .. " " .. entry.id or "")
    end
    table.sort(lines)
    table.insert(lines, 1, exact(share.credit) .. " " .. exact(share.use) .. " " .. exact(share.running))
    return table.concat(lines, "\n")
end

-- Writes the changed shares. Called at the end of each server function. A share is forgotten an hour, or ten
-- half-lives, after its last change.
function fair_share.write_changed(shares)
    for _, share in pairs(tenants.shares() and shares or {}) do
        local text = share.is_changed and text_of(share)
        if text and text ~= (share.text ~= "" and share.text or "0 0 0") then
            text = remove_old_starts(share) and text_of(share) or text
            local _, half_life_us = tenants.shares()
            local kept_s = math.max(protocol.SHARES_KEPT_S, math.ceil(half_life_us / 100000))
            redis.call("SET", share.name, text, "EX", kept_s)
        end
    end
end

-- Returns the member of `turns` for a candidate: equal start tags are ordered by age.
local function member_of(entry)
    return entry.enqueued .. " " .. entry.id
end

-- Makes job `id` the candidate of a share for `type`. Its start tag is not below the clock.
local function set_candidate(share, type, enqueued, id)
    local _, half_life_us = tenants.shares()
    local entry = share.of[type] or { start = 0, is_new = true }
    if not (entry.id or entry.is_new or entry.before) then
        entry.before = entry.start
    end
    if half_life_us > 0 then
        entry.start = share.use
    else
        local clock = redis.call("ZSCORE", key.clocks, share.lane .. " " .. type)
        entry.start = math.max(entry.start, tonumber(clock or nil) or 0)
    end
    entry.enqueued, entry.id, share.of[type] = enqueued, id, entry
    redis.call("ZADD", key.turns(type, share.lane), exact(entry.start), member_of(entry))
    share.is_changed = true
end

-- Removes the candidate of a share for `type`.
local function remove_candidate(share, type, entry)
    redis.call("ZREM", key.turns(type, share.lane), member_of(entry))
    entry.enqueued, entry.id, share.is_changed = nil, nil, true
end

-- Lets the oldest job without a tenant in a lane be the candidate, unless there is one.
local function next_untenanted(type, lane)
    local share = read_share(lane, UNTENANTED)
    if not (share.of[type] and share.of[type].id) then
        local first, enqueued = unpack(corrupt.first_of(key.untenanted(type, lane), 1))
        if first then
            set_candidate(share, type, enqueued, first)
        end
    end
end

-- Called when job `id` has entered its lane.
--   is_listed_again: true if the present candidate may be missing from its lane or from `turns`.
function fair_share.enter(id, type, lane, enqueued, is_listed_again)
    local job_key = tenant_of(id)
    if job_key == UNTENANTED then
        redis.call("ZADD", key.untenanted(type, lane), enqueued, id)
    end
    local share = read_share(lane, job_key)
    local entry = share.of[type]
    if entry and entry.id then
        local is_older = entry.id == id
            or score.is_older(tonumber(entry.enqueued), entry.id, tonumber(enqueued), id)
        if is_older and not is_listed_again then
            return
        elseif is_older and redis.call("ZSCORE", key.lane(type, lane), entry.id) then
            redis.call("ZADD", key.turns(type, lane), exact(entry.start), member_of(entry))
            return
        end
        remove_candidate(share, type, entry)
    end
    set_candidate(share, type, enqueued, id)
end

-- Called when job `id` leaves its lane.
--   is_claimed: true if `hooks.charge` follows.
function fair_share.leave(id, type, lane, is_claimed)
    local job_key = tenant_of(id)
    if job_key == UNTENANTED then
        redis.call("ZREM", key.untenanted(type, lane), id)
    end
    local share = read_share(lane, job_key)
    local entry = share.of[type]
    if entry and entry.id == id then
        remove_candidate(share, type, entry)
        if is_claimed then
            entry.is_new, entry.before = false, nil
            return
        elseif entry.is_new then
            share.of[type] = nil
        end
        entry.start, entry.before = entry.before or entry.start, nil
        if job_key == UNTENANTED then
            next_untenanted(type, lane)
        end
    end
end

-- Adds `us` of slot-time to the use of a tenant, and moves its candidates.
local function add_use(share, us)
    local _, half_life_us = tenants.shares()
    local added = math.floor(us / tenants.quota_of(tenants.name_of(share.key)).weight)
    share.is_changed = true
    if added == 0 then
        return
    elseif half_life_us > 0 then
        share.use = half_life.add(share.use, added, half_life_us)
    end
    for type, entry in pairs(share.of) do
        entry.start = half_life_us > 0 and share.use or entry.start + added
        entry.before = entry.before and entry.before + added
        if entry.id then
            redis.call("ZADD", key.turns(type, share.lane), "XX", exact(entry.start), member_of(entry))
        end
    end
end

-- Called after a job that was chosen in the class of `lane` has left its lane. Charges its tenant if it was claimed.
--   worker: the worker that claimed it, or nil if it has ended instead.
--   turn: start tag of its turn, which moves the clocks of all types of the worker. It is false or nil if
--     the job was chosen by its tenant's minimum or by age only, or because reserves block the other candidates.
function hooks.charge(id, type, lane, worker, turn)
    local job_key = tenant_of(id)
    local share = read_share(lane, job_key)
    if worker then
        local usual_us = tonumber(string.match(redis.call("HGET", key.durations, type) or "", "^%d+$") or 0)
        local used_us = math.min(share.credit, usual_us)
        share.credit, share.running = share.credit - used_us, share.running + 1
        add_use(share, usual_us - used_us)
        local generation, half_life_us = tenants.shares()
        local _, types = free_slots.terms(worker)
        if turn and half_life_us == 0 and types[1] then
            local clocks = {}
            for _, served in ipairs(types) do
                clocks[#clocks + 1], clocks[#clocks + 2] = exact(turn), lane .. " " .. served
            end
            chunked.call("ZADD", key.clocks, clocks, "GT")
        end
        local charged = generation .. ":" .. call.text(usual_us)
        if job_key == UNTENANTED then -- otherwise its end would not read the charge
            redis.call("HSET", key.job(id), "charged", charged, "more", 1)
        else
            redis.call("HSET", key.job(id), "charged", charged)
        end
    end
    if job_key == UNTENANTED then
        next_untenanted(type, lane)
    end
end

-- Corrects the charge of job `id` when it loses its slot. `charged`: field of its hash, with the generation.
function fair_share.correct(id, charged)
    redis.call("HDEL", key.job(id), "charged")
    local claimed, lane = unpack(redis.call("HMGET", key.job(id), "claimed", "lane"))
    local generation, us = string.match(charged, "^(%d+):(%d+)$")
    if generation ~= tenants.shares() or not lanes.is_lane(lane) then
        return
    end
    local claimed_us, charged_us = tonumber(claimed or nil) or call.now_us, tonumber(us)
    local share, more_us = read_share(lane, tenant_of(id)), math.max(0, call.now_us - claimed_us) - charged_us
    share.running = math.max(0, share.running - 1)
    add_use(share, math.max(0, more_us))
    share.credit = share.credit + math.max(0, -more_us)
end

-- Returns the first candidate of a type and lane as a table with `id`, `enqueued` and `start`, or nil. Members without
-- a valid form, which another client has added, are removed.
local function first_candidate(type, lane)
    local turns = key.turns(type, lane)
    for _ = 1, protocol.MAX_TURNS do
        local first = redis.call("ZRANGE", turns, 0, 0, "WITHSCORES")
        local enqueued, id = string.match(first[1] or "", "^(%d+) (%S+)$")
        if id or not first[1] then
            return id and { id = id, type = type, lane = lane, enqueued = enqueued, start = tonumber(first[2]) }
        end
        corrupt.remove(turns, first[1])
    end
end

-- Returns true if a reserve blocks a candidate.
local function is_blocked(waiting, view, type, lane, candidate)
    local filter = waiting.kept_back
    return filter and filter.open(type, lane .. " " .. member_of(candidate), view) == ""
end

-- Returns the best candidate of a tenant, by score.
--   first: its candidate with the smallest start tag.
--   eligible: type -> position in the types of `waiting`, for types whose jobs can be claimed.
local function best_of_tenant(waiting, view, first, eligible)
    local best, best_points = first, nil
    for type, entry in pairs(read_share(first.lane, tenant_of(first.id)).of) do
        if entry.id and eligible[type] and not is_blocked(waiting, view, type, first.lane, entry) then
            local rarity = job_choice.rarity(waiting, eligible[type])
            local enqueued_us = tonumber(entry.enqueued)
            local points = head_cache.points(first.lane, call.now_us - enqueued_us, waiting.settings) + rarity
            if not best_points or points > best_points or points == best_points
                and score.is_older(enqueued_us, entry.id, tonumber(best.enqueued), best.id) then
                best = { id = entry.id, type = type, lane = first.lane, enqueued = entry.enqueued }
                best_points = points
            end
        end
    end
    return best
end

-- Returns the job to claim in the class of `job`, the best job by score, and the start tag of its turn. The tag is
-- false if there is no turn: reserves block all candidates, or no job of the class is listed yet. The job is then
-- `job`.
function hooks.turn(waiting, job, view)
    local lane, eligible, first = job.lane, {}, nil
    for nth, type in ipairs(waiting.types) do
        local heads = waiting.heads[type]
        local candidate = heads and (type == job.type or lanes.place(heads, lane)) and view:any_free(type)
            and first_candidate(type, lane)
        if candidate and not is_blocked(waiting, view, type, lane, candidate) then
            eligible[type] = nth
            if not first or candidate.start < first.start or candidate.start == first.start
                and score.is_before(candidate, first) then
                first = candidate
            end
        end
    end
    if not first then
        return job, false
    end
    local chosen = waiting.settings and best_of_tenant(waiting, view, first, eligible) or first
    if chosen.id == job.id then
        return job, first.start
    end
    queue_heads.find_place(waiting, chosen)
    return chosen, first.start
end

-- For a repair: the Redis key of the share of job `id`; enqueue time and id of its tenant's candidate, or nil; and true
-- if it has a tenant.
function fair_share.key_of(id, lane)
    return key.share(lane, tenant_of(id), (tenants.shares()))
end
function fair_share.candidate_of(id, type, lane)
    local entry = read_share(lane, tenant_of(id)).of[type] or {}
    return entry.enqueued, entry.id
end
function fair_share.has_tenant(id)
    return tenant_of(id) ~= UNTENANTED
end

-- Removes the candidate `job` that is not in its lane: another client deleted it there.
function hooks.forget_candidate(job)
    redis.call("ZREM", key.turns(job.type, job.lane), member_of(job))
end

-- Begins a generation of shares after a change of settings, or ends shares: jobs that wait are listed again.
function fair_share.restart()
    local is_on = tenants.shares() ~= nil
    redis.call("UNLINK", key.clocks, key.unlisted)
    for type, heads in pairs(flat.values(redis.call("HGETALL", key.heads))) do
        if type ~= "!" then
            for lane in lanes.each(heads) do
                fair_share.list_again(type, lane, is_on)
            end
        end
    end
    type_limits.write_flag(fair_share.FIELD, is_on and 1)
    fair_share.list_some()
end

-- Lets the jobs of a lane be listed again. `is_on`: false to only delete their lists.
function fair_share.list_again(type, lane, is_on)
    redis.call("UNLINK", key.turns(type, lane), key.untenanted(type, lane))
    if is_on then
        redis.call("HSET", key.unlisted, type .. " " .. lane, "0 0")
    end
end

-- Lists jobs of the lanes in key `unlisted`, the oldest first, once per invocation. Returns true if there can be more.
function fair_share.list_some()
    if not tenants.shares() then
        return false -- another client wrote the key
    end
    local budget = key_state.cache().has_listed and 0 or protocol.MAX_LISTED
    key_state.cache().has_listed = true
    local fields = redis.call("HGETALL", key.unlisted)
    for i = 1, #fields, 2 do
        local type, lane = string.match(fields[i], "^(%S+) (%S+)$")
        local from, offset = string.match(fields[i + 1], "^(%d+) (%d+)$")
        local jobs = type and from and budget > 0 and redis.call(
            "ZRANGEBYSCORE", key.lane(type, lane), from, "+inf", "WITHSCORES", "LIMIT", offset, budget)
        if jobs then
            local last, same = jobs[#jobs], 0
            for n = 1, #jobs, 2 do
                same = same + (jobs[n + 1] == last and 1 or 0)
                if corrupt.is_word(jobs[n]) and string.find(jobs[n + 1], "^%d+$") then
                    fair_share.enter(jobs[n], type, lane, jobs[n + 1], true)
                end
            end
            budget = budget - #jobs / 2
            hash.write(key.unlisted, fields[i], budget == 0 and last .. " " .. (last == from and offset or 0) + same)
        elseif not (type and from) then
            redis.call("HDEL", key.unlisted, fields[i])
        end
    end
    return budget == 0 and #fields > 0
end

-- half_life: computes a tenant's tag when the weight of used slot-time halves per half-life (`fair_share`). The tag is
-- log2(sum of u * 2 ^ (t / half-life)) over all slot-time that the tenant used. u is the slot-time in µs divided by the
-- tenant's weight, and t the time of use since the epoch. All terms decay equally, so the order of tags is stable, and
-- a tag is written only when the tenant uses more.
-- The functions use only sums and products, so each server computes the same last bit as the reference model.
local LOG2_OF_E = 1.4426950408889634
local LN_2 = 0.6931471805599453
local ROOT_OF_HALF = 0.7071067811865476

-- Returns the base-2 logarithm of a positive number. For its mantissa m, ln m is 2 atanh((m - 1) / (m + 1)).
local function log2(number)
    local m, exponent = math.frexp(number)
    if m < ROOT_OF_HALF then
        m, exponent = m * 2, exponent - 1
    end
    local ratio = (m - 1) / (m + 1)
    local square, sum = ratio * ratio, 0
    for n = 21, 1, -2 do
        sum = sum * square + 1 / n
    end
    return exponent + 2 * ratio * sum * LOG2_OF_E
end

-- Returns 2 to the power of a number that is not positive. A series computes e to the power of the fraction.
local function exp2(number)
    local whole = math.floor(number)
    local x, sum = (number - whole) * LN_2, 1
    for n = 20, 1, -1 do
        sum = 1 + sum * x / n
    end
    return whole < -1000 and 0 or math.ldexp(sum, whole)
end

-- Returns the tag after a use of `us` (positive, already divided by the weight) that ends now.
--   tag: the tag before, 0 if there is none.
function half_life.add(tag, us, half_life_us)
    local added = log2(us) + call.now_us / half_life_us
    if tag == 0 then -- 0 means no tag: with a half-life of many years, it would matter as a tag
        return added
    end
    local greater = math.max(tag, added)
    return greater + log2(1 + exp2(math.min(tag, added) - greater))
end
