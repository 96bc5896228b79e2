-- placement: which of several equally specialised workers with a free slot a job goes to, if the setting `placement` is
-- "weighted": the one with the most points, as rules/placement has it. Field "!placing" of key `type_rules` says the
-- weights, so that a claim which reads that key anyway finds them, and no other one looks.
-- Cost: one command for each worker of the sample.
placement.FIELD = "!placing"
local NAMES = {
    "placement", "placement_priority_weight", "placement_locality_weight", "placement_free_weight", "sample_size",
}

-- RETURNS that field as the settings would have it; false for none. Weights that are all 0 are as good as none.
function placement.words()
    local values = redis.call("HMGET", key.settings, unpack(NAMES))
    for i, name in ipairs(NAMES) do
        local default = settings_in_force.default_of(name)
        values[i] = (i == 1 or tonumber(values[i])) and values[i] or tostring(default)
    end
    local has_weights = tonumber(values[2]) ~= 0 or tonumber(values[3]) ~= 0 or tonumber(values[4]) ~= 0
    return values[1] == "weighted" and has_weights and table.concat(values, " ", 2)
end

-- Settings have changed: writes the field anew.
function placement.settings_have_changed()
    local words = placement.words()
    if words ~= redis.call("HGET", key.type_rules, placement.FIELD) then
        type_rules.write_field(placement.FIELD, words)
    end
end

local meanings = kept.cache()

local function meaning_of(text)
    local priority, locality, free, sample = string.match(text, "^(%S+) (%S+) (%S+) (%S+)$")
    return {
        weights = tonumber(priority) and {
            priority = tonumber(priority), locality = tonumber(locality), free = tonumber(free),
            sample = tonumber(sample),
        },
    }
end

-- RETURNS what the field says, a table that nobody changes: weights: of points, and the size of samples.
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

-- RETURNS a sample of the free workers of `profiles`, a table: worker -> since when it is idle. It begins at a rank that
-- follows from the id of the job, so that each job meets others.
local function sample_of(profiles, id, most)
    local sizes, sum, found = {}, 0, {}
    for nth, profile in ipairs(profiles) do
        sizes[nth] = redis.call("ZCARD", key.free(profile))
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

-- RETURNS the best worker for job `id` among those of `profiles`, which are equally specialised; nil for none.
function placement.best(profiles, id, weights)
    local best, most, best_since
    for worker, since in pairs(sample_of(profiles, id, weights.sample)) do
        local free, priority = unpack(redis.call("HMGET", key.worker(worker), "free", "priority"))
        local points = (tonumber(priority) or 0) * weights.priority + (tonumber(free) or 0) * weights.free
        if not best or points > most
            or (points == most and (since < best_since or (since == best_since and worker < best))) then
            best, most, best_since = worker, points, since
        end
    end
    return best
end
