-- placement: which of several equally specialised workers with a free slot a job goes to, if the setting `placement` is
-- "weighted": the one with the most points, as rules/placement has it. Field "!placing" of key `type_rules` says the
-- weights, so that a claim which reads that key anyway finds them, and no other one looks.
-- Cost: one command for each worker of the sample.
placement.FIELD = "!placing"
local FEW_PROFILES = 10
local NAMES = {
    "placement", "locality_bonus", "tenant_turns",
    "placement_priority_weight", "placement_locality_weight", "placement_free_weight", "sample_size",
}

-- RETURNS that field as the settings would have it: the bonus of locality, and the weights, if there are any; false for
-- none of these. Weights that are all 0 are as good as none. Where tenants take turns by shares these alone say which
-- job of a lane goes: there is no bonus.
function placement.words()
    local values = redis.call("HMGET", key.settings, unpack(NAMES))
    for i, name in ipairs(NAMES) do
        local default = settings_in_force.default_of(name)
        local is_good = type(default) == "string" or tonumber(values[i])
        values[i] = is_good and values[i] or tostring(default)
    end
    local bonus = values[3] ~= "share" and tonumber(values[2]) > 0 and values[2]
    local has_weights = tonumber(values[4]) ~= 0 or tonumber(values[5]) ~= 0 or tonumber(values[6]) ~= 0
    if values[1] == "weighted" and has_weights then
        return (bonus or "0") .. " " .. table.concat(values, " ", 4)
    end
    return bonus
end

-- Settings have changed: writes the field anew.
function placement.settings_have_changed()
    local words = placement.words()
    if words ~= redis.call("HGET", key.type_rules, placement.FIELD) then
        hooks.say_to_claims(placement.FIELD, words)
    end
end

local meanings = kept.cache()

local function meaning_of(text)
    local bonus, priority, hit, free, sample = string.match(text, "^(%S+) ?(%S*) ?(%S*) ?(%S*) ?(%S*)$")
    return {
        bonus = tonumber(bonus) or 0,
        weights = tonumber(priority) and {
            priority = tonumber(priority), locality = tonumber(hit), free = tonumber(free),
            sample = tonumber(sample),
        },
    }
end

-- RETURNS what the field says, a table that nobody changes: bonus: points for a hit of locality, 0 for none; weights:
-- of the points of workers, and the size of samples; nil for none.
function placement.read(text)
    return meanings.of[text] or kept.keep(meanings, text, meaning_of(text))
end

-- RETURNS members of the sets of free workers of `profiles` with the ranks from `first` to `last` in all of them
-- together, each with the time since when it is idle. `sizes`: of the sets.
local function ranked(profiles, sizes, first, last, found)
    local before = 0
    for nth, profile in ipairs(profiles) do
        local from, to = math.max(0, first - before), math.min(sizes[nth] - 1, last - before)
        if from <= to then
            local members = redis.call("ZRANGE", key.free(profile), from, to, "WITHSCORES")
            for i = 1, #members, 2 do
                found[members[i]] = tonumber(members[i + 1])
            end
        end
        before = before + sizes[nth]
    end
end

-- RETURNS a sample of the free workers of `profiles`, a table: worker -> since when it is idle. It begins at a rank
-- that follows from the id of the job, so that each job meets others.
local function sample_of(profiles, known, id, most)
    local sizes, sum, found = {}, 0, {}
    for nth, profile in ipairs(profiles) do
        known.sizes[profile] = known.sizes[profile] or redis.call("ZCARD", key.free(profile))
        sizes[nth] = known.sizes[profile]
        sum = sum + sizes[nth]
    end
    if most == 0 or sum <= most then
        ranked(profiles, sizes, 0, sum - 1, found)
        return found
    end
    local first = tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) % sum
    ranked(profiles, sizes, first, first + most - 1, found)
    ranked(profiles, sizes, 0, first + most - 1 - sum, found) -- goes on at the beginning
    return found
end

-- RETURNS what is known of free workers in a call: profile -> their number (`sizes`); worker -> its row (`rows`).
function placement.knows_nothing()
    return { sizes = {}, rows = {} }
end

-- Slots of these `profiles`, and of these `workers`, tables by their names, were written anew.
function placement.forget(known, profiles, workers_changed)
    for profile in pairs(profiles) do
        known.sizes[profile] = nil
    end
    for worker in pairs(workers_changed) do
        known.rows[worker] = nil
    end
end

-- RETURNS what the row of `worker` says: free slots, priority and profile.
local function row_of(worker, known)
    known.rows[worker] = known.rows[worker] or redis.call("HMGET", key.worker(worker), "free", "priority", "profile")
    return known.rows[worker]
end

-- RETURNS those of `holders`, a list, that have a free slot and one of `profiles`: worker -> since when it is idle.
local function free_holders(holders, profiles, known)
    local idle_since, is_among = {}, {}
    if #profiles <= FEW_PROFILES then -- less to ask than the row of each holder
        for _, profile in ipairs(profiles) do
            for nth, since in ipairs(redis.call("ZMSCORE", key.free(profile), unpack(holders))) do
                idle_since[holders[nth]] = tonumber(since) or idle_since[holders[nth]]
            end
        end
        return idle_since
    end
    for _, profile in ipairs(profiles) do
        is_among[profile] = true
    end
    for _, worker in ipairs(holders) do
        local free, _, profile = unpack(row_of(worker, known), 1, 3)
        if is_among[profile] and tonumber(free or 0) > 0 then
            idle_since[worker] = tonumber(redis.call("ZSCORE", key.free(profile), worker) or nil)
        end
    end
    return idle_since
end

-- Adds those of `holders`, a list, that `free_holders` returns to the workers of `found`; of very many some. RETURNS a
-- table: worker -> true, of these.
local function add_holders(found, holders, profiles, known)
    local are_hits, number = {}, 0
    local idle_since = #holders > 0 and free_holders(holders, profiles, known) or {}
    for _, worker in ipairs(holders) do
        if idle_since[worker] and number < protocol.MOST_FREE_HOLDERS then
            number, are_hits[worker], found[worker] = number + 1, true, idle_since[worker]
        end
    end
    return are_hits
end

-- RETURNS the best worker for job `id` among those of `profiles`, the most specialised ones with a free slot. `known`:
-- what earlier choices of this call have read (`knows_nothing`).
function placement.best(profiles, known, id, weights)
    local found, best, most, best_since = sample_of(profiles, known, id, weights.sample), nil, nil, nil
    local are_hits = marks.has_hint(id) and add_holders(found, locality.holders(id), profiles, known) or {}
    for worker, since in pairs(found) do
        local free, priority = unpack(row_of(worker, known), 1, 2)
        local points = (tonumber(priority) or 0) * weights.priority + (are_hits[worker] and weights.locality or 0)
            + (tonumber(free) or 0) * weights.free
        if not best or points > most
            or (points == most and (since < best_since or (since == best_since and worker < best))) then
            best, most, best_since = worker, points, since
        end
    end
    return best
end
