-- locality: hints. A job can have a hint, a token that names its data, such as a model (option `locality`). A worker
-- holds the hints of its last successful jobs: keys `hints` of the worker and `holders` of the hint. When slots of one
-- worker are filled, waiting jobs with one of its hints get a bonus (`locality_bonus`): jobs run where their data is.
-- Jobs with a hint are listed in their lane and also in a hint lane. Key `hint_heads` has the heads of hint lanes per
-- hint and type, as key `heads` has the heads per type.
-- A worker's hash has its hints as a sorted string in the fields `hints` and `terms`; a release reads `terms` anyway.
--
-- Cost: about four commands for each job with a hint that enters or leaves its lane, or ends; O(log n). A choice reads
-- the heads of the worker's hints. It compares changed heads again, up to MAX_NEAR_BYTES per invocation.
local PREFIX = "key:hint:"
local MICRO = 1000000

-- Returns the pseudo-type of the hint lanes for jobs of `type` with `hint`.
function locality.place_of(hint, type)
    return PREFIX .. hint .. ":" .. type
end

-- Returns the field of key `hint_heads` that has their heads.
function locality.field_of(hint, type)
    return hint .. " " .. type
end

-- Returns the hint and type of such a field, or nil if it is invalid.
function locality.parts_of(field)
    return string.match(field, "^(%S+) (%S+)$")
end

-- Returns the hint of job `id` from its hash, or nil if another client deleted the hash.
function locality.hint_of(id)
    return rules_codec.hint(redis.call("HGET", key.job(id), "rules") or nil)
end

-- Writes the hint heads of `type` into `field`.
local function write(field, type, heads)
    if heads == "" then
        redis.call("HDEL", key.hint_heads, field)
    else
        redis.call("HSET", key.hint_heads, field, heads)
    end
    if call.near then
        call.near.heads[type], call.near.best[type] = nil, nil
    end
end

-- Adds job `id`, which enters its lane, to its hint lane.
function locality.enter(id, type, lane, enqueued)
    local hint = locality.hint_of(id)
    if hint then
        local field = locality.field_of(hint, type)
        local before = redis.call("HGET", key.hint_heads, field) or ""
        local after = lanes.insert(id, locality.place_of(hint, type), lane, enqueued, before)
        if after ~= before then
            write(field, type, after)
        end
    end
end

-- Removes job `id`, which leaves its lane, from its hint lane.
--   job: as in `hooks.leaves_lane`.
function locality.leave(id, type, lane, job)
    local hint = job and job.hint or locality.hint_of(id)
    if not hint then
        return
    end
    local field, hint_choice = locality.field_of(hint, type), call.near
    local heads = job and job.near and hint_choice.heads[type] -- nil if a hook has moved a job since
    local before = heads and heads[job.near] or redis.call("HGET", key.hint_heads, field) or ""
    local after, next_enqueued
    if heads then
        after, next_enqueued = lanes.pop(job, before, job.near_place, key.hint_lane(hint, type, lane))
        head_cache.popped(field, job.near_place, lane, before, after, next_enqueued, hint_choice.settings)
    else
        after = lanes.take_out(id, locality.place_of(hint, type), lane, before)
    end
    if after ~= before then
        write(field, type, after)
    end
end

-- Returns the field value for a list of `hints`.
function locality.words(hints)
    table.sort(hints)
    return table.concat(hints, " ")
end

-- Called when a worker has completed job `id` successfully. `known`: result of `claims.remove`. The job's hint becomes
-- the worker's latest one. Above MAX_HINTS, the worker's oldest hint is deleted. Counts a hit if the worker held the
-- hint before, otherwise a miss.
function hooks.has_succeeded(worker, id, known)
    local hint = id_suffix.has_hint(id) and rules_codec.hint(known.rules or nil)
    if not hint then
        return
    end
    local is_miss = redis.call("ZADD", key.hints(worker), call.now, hint) == 1
    redis.call("HINCRBY", key.counters, is_miss and "locality_misses" or "locality_hits", "1")
    if is_miss then
        redis.call("ZADD", key.holders(hint), call.now, worker)
        local hints = redis.call("ZRANGE", key.hints(worker), 0, -1)
        if #hints > protocol.MAX_HINTS then
            local oldest = table.remove(hints, 1)
            redis.call("ZREM", key.hints(worker), oldest)
            redis.call("ZREM", key.holders(oldest), worker)
        end
        free_slots.write_hints(worker, locality.words(hints))
    end
end

-- Deletes the hints of a leaving `worker`.
function hooks.worker_leaves(worker)
    for _, hint in ipairs(redis.call("ZRANGE", key.hints(worker), 0, -1)) do
        redis.call("ZREM", key.holders(hint), worker)
    end
    redis.call("UNLINK", key.hints(worker))
end

local parsed_hints = memo.cache()

-- Returns the hints of the view's worker, a read-only list, or nil if there are none.
function locality.of(view)
    local hints = not call.has_new_hints and view.hints
    if not hints then
        local text = redis.call("HGET", key.worker(view.worker), "hints") or ""
        hints = parsed_hints.of[text] or memo.keep(parsed_hints, text, workers.split(text))
    end
    return #hints > 0 and hints or nil
end

-- Returns the workers that hold the hint of `job`, the latest first, up to MAX_HOLDERS. Stores its hint in it.
function locality.holders(job)
    job.hint = locality.hint_of(job.id)
    return job.hint and redis.call("ZRANGE", key.holders(job.hint), "0", protocol.MAX_HOLDERS - 1, "REV") or {}
end

local cached_fields = memo.cache() -- type -> fields for the hints that were used last

-- Returns the fields for jobs of `type` with one of `hints`, a read-only list.
local function fields_of(hints, type)
    local fields = cached_fields.of[type] or memo.keep(cached_fields, type, {})
    if fields.hints ~= hints then
        fields = { hints = hints }
        for nth, hint in ipairs(hints) do
            fields[nth] = locality.field_of(hint, type)
        end
        cached_fields.of[type] = fields
    end
    return fields
end

-- Returns a table for a claim's choice among jobs with the worker's hints. Returns nil if there is no bonus, if `view`
-- is not the view of one worker, or if the worker has no hints. `job_choice.rarity` accepts the table as a choice.
--   hints: hints of the worker.
--   heads: type -> hint heads per hint.
--   best: type -> result of `best_of`.
--   bytes: bytes of heads that the claim can still compare.
function hooks.near(types, view, preferred)
    local hints = preferred.bonus > 0 and view.worker and locality.of(view)
    return hints and {
        hints = hints, bonus = preferred.bonus, types = types, view = view, settings = false, capacities = false,
        heads = {}, best = {}, bytes = protocol.MAX_NEAR_BYTES,
    } or nil
end

-- Returns true if `job` has one of the worker's hints. Stores its hint in it.
local function has_worker_hint(hint_choice, job)
    job.hint = locality.hint_of(job.id)
    for _, hint in ipairs(hint_choice.hints) do
        if hint == job.hint then
            return true
        end
    end
    return false
end

-- Returns the best job of `type` with one of the worker's hints, or nil. The table has the position of its hint, the
-- heads and the place there, and its points without rarity.
local function best_of(hint_choice, type)
    local fields, heads = fields_of(hint_choice.hints, type), hint_choice.heads[type]
    if not heads then
        heads = redis.call("HMGET", key.hint_heads, unpack(fields))
        hint_choice.heads[type] = heads
    end
    local nth, head, points = head_cache.first(fields, heads, hint_choice.settings, nil, hint_choice)
    return nth and { nth = nth, heads = heads[nth], place = head.place, points = points }
end

-- Returns the best job with one of the worker's hints that fits a free slot (see `best_of`), its points and its type;
-- nil if there is none.
local function best_hinted(hint_choice, waiting)
    local best, best_points, best_type
    local types = hint_choice.types
    for nth = 1, #types do
        local type = types[nth]
        if waiting.heads[type] and hint_choice.view:any_free(type) then
            local head = hint_choice.best[type]
            if head == nil then
                head = best_of(hint_choice, type) or false
                hint_choice.best[type] = head
            end
            local points = head and head.points
            if head and #types > 1 and (not best or points + hint_choice.settings.max_rarity >= best_points) then
                points = points + job_choice.rarity(hint_choice, nth)
            end
            if head and (not best or points > best_points or (points == best_points
                and head_cache.is_older(head.heads, head.place, best.heads, best.place))) then
                best, best_points, best_type = head, points, type
            end
        end
    end
    return best, best_points, best_type
end

-- Returns the points of `job`, without rarity if all jobs have one type.
local function points_of(hint_choice, job)
    local points = head_cache.points(job.lane, call.now_us - tonumber(job.enqueued), hint_choice.settings)
    for nth, type in ipairs(hint_choice.types) do
        if type == job.type and #hint_choice.types > 1 then
            return points + job_choice.rarity(hint_choice, nth)
        end
    end
    return points
end

-- Returns the job to claim with the bonus; it is usually `job`, the best job without the bonus. A `job` with one of the
-- worker's hints cannot be overtaken. Otherwise the best job with one of these hints gets the bonus. It is claimed if
-- its points then exceed the points of `job`, or if the points are equal and it is older. Another client may have
-- deleted that job from its lane.
function hooks.nearer(waiting, job)
    local hint_choice = call.near
    if id_suffix.has_hint(job.id) and has_worker_hint(hint_choice, job) then
        return job
    end
    hint_choice.settings = hint_choice.settings or settings_in_force.read_for_claim()
    local best, best_points, type = best_hinted(hint_choice, waiting)
    local other = best and lanes.checked_job(type, best.heads, best.place)
    if not other or other.id == job.id then
        return job
    end
    local lead = best_points + math.floor(hint_choice.bonus * MICRO) - points_of(hint_choice, job)
    if lead < 0 or (lead == 0 and score.is_before(job, other)) then
        return job
    end
    other.place, other.hint, other.near, other.near_place = nil, hint_choice.hints[best.nth], best.nth, best.place
    if other.lane ~= job.lane or other.type ~= job.type then -- otherwise it is not a head
        queue_heads.find_place(waiting, other)
    end
    return other
end
