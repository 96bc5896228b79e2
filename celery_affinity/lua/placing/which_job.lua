-- which_job: which of the heads of several types goes first, by score or by age alone.
-- Cost: grows with the types that have pending jobs, and with the lanes of those without a cache of their best heads.
-- A reason for the length: what is known of the types in one call is one table, and these are its functions.

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

local function rarity_of(choice, nth)
    local settings, type = choice.settings, choice.types[nth]
    if settings.rarity == "free" then
        return score.rarity(choice.view:free_for(type), settings)
    end
    local rarities = choice.rarities
    rarities[nth] = rarities[nth] or score.rarity(redis.call("HGET", key.capacity, type) or 1, settings)
    return rarities[nth]
end

-- Finds out which head of the `nth` type goes first.
local function find_best(choice, nth)
    local settings, its_heads = choice.settings, choice.heads[choice.types[nth]]
    if not choice.caches[nth] then
        choice.places[nth], choice.points[nth] = best_heads.only(its_heads, settings)
        if not choice.places[nth] then
            choice.caches[nth], choice.is_new[nth] = best_heads.compare(its_heads, settings), true
        end
    end
    if choice.caches[nth] then
        choice.places[nth], choice.points[nth] = best_heads.first(choice.caches[nth], its_heads, settings)
    end
end

-- RETURNS the place of the head of the `nth` type that goes first, and its score, which may lack the rarity if it is
-- below `least`.
local function best_of(choice, nth, by_age, least)
    if by_age then
        choice.oldest[nth] = choice.oldest[nth] or best_heads.oldest(choice.heads[choice.types[nth]])
        return choice.oldest[nth], 0
    end
    if not choice.places[nth] then
        find_best(choice, nth)
    end
    local its_points = choice.points[nth]
    if #choice.types > 1 and its_points + score.rarity(1, choice.settings) >= least then
        its_points = its_points + rarity_of(choice, nth)
    end
    return choice.places[nth], its_points
end

-- RETURNS what `best_of` does, for the head that goes first of those in `open`, which is a part of all heads.
local function best_open(choice, nth, open, by_age)
    if open == "" then
        return nil
    end
    local settings = choice.settings
    local place, its_points
    if by_age then
        place, its_points = best_heads.oldest(open), 0
    else
        place, its_points = best_heads.only(open, settings)
        if not place then
            place, its_points = best_heads.first(best_heads.compare(open, settings), open, settings)
        end
        its_points = its_points + rarity_of(choice, nth)
    end
    return lanes.place(choice.heads[choice.types[nth]], (lanes.at(open, place))), its_points
end

-- RETURNS the position of the type that goes first of those that a free slot fits, and the place of its head; or nil.
local function first_type(choice, by_age)
    local types, heads, view, kept_back = choice.types, choice.heads, choice.view, choice.kept_back
    local first, first_place
    local most = -math.huge
    for nth, type in ipairs(types) do
        if heads[type] and view:any_free(type) then
            local open = kept_back and kept_back.open(type, heads[type], view) or heads[type]
            local place, its_points
            if open == heads[type] then
                place, its_points = best_of(choice, nth, by_age, most)
            else
                place, its_points = best_open(choice, nth, open, by_age)
            end
            if place and (its_points > most or (its_points == most
                and best_heads.is_older(heads[type], place, heads[types[first]], first_place))) then
                first, first_place, most = nth, place, its_points
            end
        end
    end
    return first, first_place
end

-- RETURNS the job that goes first of all those that a free slot fits, or nil.
local function first(choice)
    local nth, place = first_type(choice, goes_by_age(choice.settings))
    if not nth then
        return nil
    end
    local type = choice.types[nth]
    local heads = choice.heads[type]
    if not lanes.has_one_at(heads, place) then
        error("spoiled heads of type " .. type)
    end
    count_claim(choice.settings)
    return lanes.job(type, heads, place, nth)
end

-- `job` was popped from the heads of its type, which are longer by `longer` than before.
local function popped(choice, job, longer)
    local nth = job.nth
    local cache = choice.caches[nth]
    if cache then
        choice.caches[nth] =
            best_heads.after(cache, choice.heads[job.type] or "", job, longer, choice.settings)
    end
    choice.places[nth], choice.oldest[nth], choice.is_new[nth] = nil, nil, true
end

-- The heads of the `nth` type were read again.
local function changed(choice, nth)
    choice.caches[nth], choice.places[nth], choice.oldest[nth], choice.is_new[nth] = nil, nil, nil, true
end

local function write(choice)
    for nth in pairs(choice.is_new) do
        local type = choice.types[nth]
        best_heads.write(type, choice.heads[type] or "", choice.caches[nth], choice.found[nth])
    end
end

-- RETURNS a choice among the jobs of `types`. `heads`: type -> its heads, from which the caller pops jobs, and says so
-- (`popped`). Within a script time stands still, and all lanes of a type have one rarity: which of its heads goes first
-- changes only when one of its jobs is popped. `kept_back`: what reserves keep back, which changes with the free slots;
-- nil for nothing. Of each of `types` a choice knows: its cache; the place of the head that goes first (`places`); the
-- points of this head without rarity; whether the cache is to be written (`is_new`); the place of the oldest head.
function which_job.among(types, heads, view, kept_back)
    local settings = settings_in_force.for_a_claim()
    local caches, places, points, found = best_heads.read(types, heads, settings)
    return {
        types = types, heads = heads, view = view, settings = settings, kept_back = kept_back,
        caches = caches, places = places, points = points, found = found, is_new = {}, oldest = {}, rarities = {},
        first = first, popped = popped, changed = changed, write = write,
    }
end
