-- choice: which of several heads goes first: by score, or by age alone.
-- Cost: grows with the types that have waiting jobs; with their lanes where no note says which of them goes first.
-- @include placing/best_heads.lua

-- RETURNS whether the next claim goes by age alone.
local function goes_by_age(settings)
    if settings.priority_percentage == 100 then
        return false
    end
    return score.goes_by_age(tonumber(redis.call("GET", key.turn) or 0), settings.priority_percentage)
end

-- Only claims that had a choice are counted, and only if a share of them goes by age: it costs a write for each.
local function count_it(settings)
    if settings.priority_percentage ~= 100 then
        redis.call("INCR", key.turn)
    end
end

-- `types`: those that wait; `heads`: type -> its heads, from which the caller takes jobs, and says so. Within a script
-- time stands still, and rarity is the same for all lanes of a type: which of its heads goes first changes only when
-- one of its jobs is taken.
local function choice_among(types, heads, view, settings)
    read_for_a_claim(settings)
    local points_of = leaders.scale(settings)
    -- Of each of `types`: its note, the place of the head that goes first, its points without rarity.
    local notes, places, points, found = leaders.read(types, heads, settings)
    local is_new, oldest = {}, {} -- whether its note is to be written; the place of its oldest head
    local rarest = score.rarity(1, settings)
    local rarities = {}

    local function rarity_of(nth)
        if settings.rarity == "free" then
            return score.rarity(view.free_for(types[nth]), settings)
        end
        rarities[nth] = rarities[nth] or score.rarity(redis.call("HGET", key.capacity, types[nth]) or 1, settings)
        return rarities[nth]
    end

    -- Finds out which head of the `nth` type goes first, if no rule keeps all of them back.
    local function look(nth)
        local type = types[nth]
        local its_heads = heads[type]
        if not notes[nth] then
            places[nth], points[nth] = leaders.only(its_heads, points_of)
            if not places[nth] then
                notes[nth], is_new[nth] = leaders.look(type, its_heads, points_of, settings), true
            end
        end
        if notes[nth] then
            places[nth], points[nth] = leaders.first(notes[nth], its_heads, settings)
        end
    end

    -- RETURNS the place of the head of the `nth` type that goes first, and its score, which is of no use if it is below
    -- `least`; nil if a rule keeps all of them back.
    local function best_of(nth, by_age, least)
        if by_age then
            oldest[nth] = oldest[nth] or leaders.oldest(types[nth], heads[types[nth]])
            return oldest[nth], 0
        end
        if not places[nth] then
            look(nth)
        end
        local its_points = points[nth]
        if places[nth] and #types > 1 and its_points + rarest >= least then
            its_points = its_points + rarity_of(nth)
        end
        return places[nth], its_points
    end

    -- RETURNS which type goes first of all those that a free slot fits, and the place of its head; or nil.
    local function first_type(by_age)
        local first, first_place
        local most = -math.huge
        for nth, type in ipairs(types) do
            if heads[type] and view.any_free(type) then
                local place, its_points = best_of(nth, by_age, most)
                if place and (its_points > most or (its_points == most
                    and leaders.is_older(heads[type], place, heads[types[first]], first_place))) then
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
            count_it(settings)
            return lanes.job(types[first], heads[types[first]], place, first)
        end,

        -- `job` was taken out of the heads of its type, which are longer by `longer`.
        taken = function(job, longer)
            local nth = job.nth
            if notes[nth] then
                notes[nth] = leaders.after(notes[nth], heads[job.type] or "", job, longer, points_of, settings)
            end
            places[nth], oldest[nth], is_new[nth] = nil, nil, true
        end,

        write = function()
            for nth in pairs(is_new) do
                leaders.write(types[nth], heads[types[nth]] or "", notes[nth], found[nth])
            end
        end,
    }
end
