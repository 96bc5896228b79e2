-- placement: which of several equally specialised workers with a free slot a job goes to, if the setting `placement` is
-- "weighted": the one with the most points, as rules/placement has it. Field "!placing" of key `type_rules` says the
-- weights, so that a claim which reads that key anyway finds them, and no other one looks.
-- Cost: one command for each worker of the sample.
placement.FIELD = "!placing"
local FEW_PROFILES = 10 -- in so many, holders of a hint are looked up (key `free`); else the holders' rows are read
local MOST_ASKED = 10 -- so many of these at most
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
        local default = defaults.OF[name]
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

local meanings = memo.cache()

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
    return meanings.of[text] or memo.keep(meanings, text, meaning_of(text))
end

-- Adds the free workers of a profile from rank `first` to `last`, each with the time since when it is idle, to `found`.
-- RETURNS their number.
local function add_ranked(found, profile, first, last)
    local members = redis.call("ZRANGE", key.free(profile), first, last, "WITHSCORES")
    for i = 1, #members, 2 do
        found[members[i]] = tonumber(members[i + 1])
    end
    return #members / 2
end

-- RETURNS a sample of the free workers of `profiles`, a table: worker -> since when it is idle. It begins at a profile,
-- and at a rank there, that follow from the id of the job, so that each job meets others; and goes on with the next
-- profiles, in a circle. `most`: number of workers; 0: all.
local function sample_of(profiles, id, most)
    local found, number = {}, tonumber(string.sub(redis.sha1hex(id), 1, 8), 16)
    local begin = number % #profiles
    local left, rank = most > 0 and most or math.huge, 0
    if most > 0 then
        rank = math.floor(number / #profiles) % math.max(1, redis.call("ZCARD", key.free(profiles[begin + 1])))
    end
    for nth = begin, begin + #profiles - 1 do
        local first = nth == begin and rank or 0
        left = left - add_ranked(found, profiles[nth % #profiles + 1], first, most > 0 and first + left - 1 or -1)
        if left == 0 then
            return found
        end
    end
    if rank > 0 then
        add_ranked(found, profiles[begin + 1], 0, math.min(rank, left) - 1)
    end
    return found
end

-- RETURNS what the row of `worker` says: free slots, priority and profile. `rows`: those that were read.
local function row_of(worker, rows)
    rows[worker] = rows[worker] or redis.call("HMGET", key.worker(worker), "free", "priority", "profile")
    return rows[worker]
end

-- RETURNS those of `holders`, a list, that have a free slot and one of `profiles`: worker -> since when it is idle.
local function free_holders(holders, profiles, rows)
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
    for nth = 1, math.min(#holders, MOST_ASKED) do
        local worker = holders[nth]
        local free, _, profile = unpack(row_of(worker, rows), 1, 3)
        if is_among[profile] and tonumber(free or 0) > 0 then
            idle_since[worker] = tonumber(redis.call("ZSCORE", key.free(profile), worker) or nil)
        end
    end
    return idle_since
end

-- Adds those of `holders`, a list, that `free_holders` returns to the workers of `found`; of very many some. RETURNS a
-- table: worker -> true, of these.
local function add_holders(found, holders, profiles, rows)
    local are_hits, number = {}, 0
    local idle_since = #holders > 0 and free_holders(holders, profiles, rows) or {}
    for _, worker in ipairs(holders) do
        if idle_since[worker] and number < protocol.MOST_FREE_HOLDERS then
            number, are_hits[worker], found[worker] = number + 1, true, idle_since[worker]
        end
    end
    return are_hits
end

-- RETURNS the best worker for job `id` among those of `profiles`, the most specialised ones with a free slot. `rows`:
-- what earlier choices have read that still holds: worker -> its row.
function placement.best(profiles, rows, id, weights)
    local found, best, most, best_since = sample_of(profiles, id, weights.sample), nil, nil, nil
    local are_hits = id_suffix.has_hint(id) and add_holders(found, locality.holders(id), profiles, rows) or {}
    for worker, since in pairs(found) do
        local free, priority = unpack(row_of(worker, rows), 1, 2)
        local points = (tonumber(priority) or 0) * weights.priority + (are_hits[worker] and weights.locality or 0)
            + (tonumber(free) or 0) * weights.free
        if not best or points > most
            or (points == most and (since < best_since or (since == best_since and worker < best))) then
            best, most, best_since = worker, points, since
        end
    end
    return best
end
