-- which_job: which of the heads of several types goes first, by score or by age alone.
-- Cost: grows with the types that have pending jobs, and with the lanes of those without a cache of their best heads.
-- A reason for the length: what is known of the types lives in the locals of one function, for one call of a script.

-- RETURNS whether the next job is chosen by age alone.
local function goes_by_age(settings)
    if settings.priority_percentage == 100 then
        return false
    end
    return score.goes_by_age(tonumber(redis.call("GET", key.claim_number) or 0), settings.priority_percentage)
end

-- Counts a claim that had a choice, if a share of the claims goes by age: else the write would be for nothing.
local function count_claim(settings)
    if settings.priority_percentage ~= 100 then
        redis.call("INCR", key.claim_number)
    end
end

-- RETURNS a choice among the jobs of `types`. `heads`: type -> its heads, from which the caller pops jobs, and says so
-- (`popped`). Within a script time stands still, and all lanes of a type have one rarity: which of its heads goes first
-- changes only when one of its jobs is popped. `kept_back`: what reserves keep back, which changes with the free slots;
-- nil for nothing.
function which_job.among(types, heads, view, settings, kept_back)
    settings_in_force.read_for_a_claim(settings)
    local points_of = best_heads.scale(settings)
    -- Of each of `types`: its cache, the place of the head that goes first, the points of this head without rarity.
    local caches, places, points, found = best_heads.read(types, heads, settings)
    local is_new, oldest = {}, {} -- whether the cache is to be written; the place of the oldest head
    local rarest = score.rarity(1, settings)
    local rarities = {}

    local function rarity_of(nth)
        if settings.rarity == "free" then
            return score.rarity(view:free_for(types[nth]), settings)
        end
        rarities[nth] = rarities[nth] or score.rarity(redis.call("HGET", key.capacity, types[nth]) or 1, settings)
        return rarities[nth]
    end

    -- Finds out which head of the `nth` type goes first.
    local function find_best(nth)
        local type = types[nth]
        local its_heads = heads[type]
        if not caches[nth] then
            places[nth], points[nth] = best_heads.only(its_heads, points_of)
            if not places[nth] then
                caches[nth], is_new[nth] = best_heads.compare(its_heads, points_of, settings), true
            end
        end
        if caches[nth] then
            places[nth], points[nth] = best_heads.first(caches[nth], its_heads, settings)
        end
    end

    -- RETURNS the place of the head of the `nth` type that goes first, and its score, which may lack the rarity if it
    -- is below `least`.
    local function best_of(nth, by_age, least)
        if by_age then
            oldest[nth] = oldest[nth] or best_heads.oldest(heads[types[nth]])
            return oldest[nth], 0
        end
        if not places[nth] then
            find_best(nth)
        end
        local its_points = points[nth]
        if #types > 1 and its_points + rarest >= least then
            its_points = its_points + rarity_of(nth)
        end
        return places[nth], its_points
    end

    -- RETURNS what `best_of` does, for the head that goes first of those in `open`, which is a part of all heads.
    local function best_open(nth, open, by_age)
        if open == "" then
            return nil
        end
        local place, its_points
        if by_age then
            place, its_points = best_heads.oldest(open), 0
        else
            place, its_points = best_heads.only(open, points_of)
            if not place then
                place, its_points =
                    best_heads.first(best_heads.compare(open, points_of, settings), open, settings)
            end
            its_points = its_points + rarity_of(nth)
        end
        return lanes.place(heads[types[nth]], (lanes.at(open, place))), its_points
    end

    -- RETURNS the position in `types` of the type that goes first of those that a free slot fits, and the place of its
    -- head; or nil.
    local function first_type(by_age)
        local first, first_place
        local most = -math.huge
        for nth, type in ipairs(types) do
            if heads[type] and view:any_free(type) then
                local open = kept_back and kept_back.open(type, heads[type], view) or heads[type]
                local place, its_points
                if open == heads[type] then
                    place, its_points = best_of(nth, by_age, most)
                else
                    place, its_points = best_open(nth, open, by_age)
                end
                if place and (its_points > most or (its_points == most
                    and best_heads.is_older(heads[type], place, heads[types[first]], first_place))) then
                    first, first_place, most = nth, place, its_points
                end
            end
        end
        return first, first_place
    end

    return {
        -- RETURNS the job that goes first of all those that a free slot fits, or nil.
        first = function()
            local by_age = goes_by_age(settings)
            local first, place = first_type(by_age)
            if not first then
                return nil
            end
            if not lanes.has_one_at(heads[types[first]], place) then
                error("spoiled heads of type " .. types[first])
            end
            count_claim(settings)
            return lanes.job(types[first], heads[types[first]], place, first)
        end,

        -- `job` was popped from the heads of its type, which are longer by `longer` than before.
        popped = function(job, longer)
            local nth = job.nth
            if caches[nth] then
                caches[nth] = best_heads.after(caches[nth], heads[job.type] or "", job, longer, points_of, settings)
            end
            places[nth], oldest[nth], is_new[nth] = nil, nil, true
        end,

        -- The heads of the `nth` type were read again.
        changed = function(nth)
            caches[nth], places[nth], oldest[nth], is_new[nth] = nil, nil, nil, true
        end,

        write = function()
            for nth in pairs(is_new) do
                best_heads.write(types[nth], heads[types[nth]] or "", caches[nth], found[nth])
            end
        end,
    }
end
