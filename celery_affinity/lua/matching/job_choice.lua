-- job_choice: which of the heads of several types goes first, by score or by age alone.
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

-- RETURNS the points that jobs of the `nth` type of a choice get for being rare.
function job_choice.rarity(choice, nth)
    local settings, type = choice.settings, choice.types[nth]
    if settings.rarity == "free" then
        return score.rarity(choice.view:free_for(type), settings)
    end
    choice.capacities = choice.capacities or lanes.fields(key.capacity, choice.types)
    return score.rarity(choice.capacities[nth] or 1, settings)
end

-- RETURNS the place of the head that goes first of `heads`, those of the `nth` type, and its score, which may lack the
-- rarity if it is below `least`.
local function best_of(choice, nth, heads, by_age, least)
    if by_age then
        choice.oldest[nth] = choice.oldest[nth] or head_cache.oldest(heads)
        return choice.oldest[nth], 0
    end
    local settings = choice.settings
    local place, its_points = choice.places[nth], choice.points[nth]
    if not place then
        place, its_points = choice.first_head(choice.types[nth], heads, settings)
        choice.places[nth], choice.points[nth] = place, its_points
    end
    if #choice.types > 1 and its_points + settings.most_rarity >= least then
        its_points = its_points + job_choice.rarity(choice, nth)
    end
    return place, its_points
end

-- RETURNS what `best_of` does, for the head that goes first of those in `open`, which is a part of all heads.
local function best_open(choice, nth, open, by_age)
    if open == "" then
        return nil
    end
    local place, its_points
    if by_age then
        place, its_points = head_cache.oldest(open), 0
    else
        place, its_points = head_cache.first_of_some(open, choice.settings)
        its_points = its_points + job_choice.rarity(choice, nth)
    end
    return lanes.place(choice.heads[choice.types[nth]], (lanes.at(open, place))), its_points
end

-- RETURNS the position of the type that goes first of those that a free slot fits, and the place of its head; or nil.
local function first_type(choice, by_age)
    local types, heads, view, kept_back = choice.types, choice.heads, choice.view, choice.kept_back
    local first, first_place
    local most = -math.huge
    for nth, type in ipairs(types) do
        local its_heads = heads[type]
        if its_heads and view:any_free(type) then
            local open = kept_back and kept_back.open(type, its_heads, view) or its_heads
            local place, its_points
            if open == its_heads then
                place, its_points = best_of(choice, nth, its_heads, by_age, most)
            else
                place, its_points = best_open(choice, nth, open, by_age)
            end
            if place and (its_points > most or (its_points == most
                and head_cache.is_older(its_heads, place, heads[types[first]], first_place))) then
                first, first_place, most = nth, place, its_points
            end
        end
    end
    return first, first_place
end

-- RETURNS the job that goes first of all those that a free slot fits, or nil; and whether it goes by age alone.
local function first(choice)
    local by_age = goes_by_age(choice.settings)
    local nth, place = first_type(choice, by_age)
    if not nth then
        return nil
    end
    local type = choice.types[nth]
    local heads = choice.heads[type]
    local job = lanes.checked_job(type, heads, place, nth)
    if not job then
        error("spoiled heads of type " .. type)
    end
    count_claim(choice.settings)
    return job, by_age
end

-- `job` was popped from the heads of its type, which were `before`. `next_enqueued`: when the next of its lane came;
-- nil if there is none.
local function popped(choice, job, before, next_enqueued)
    local after = choice.heads[job.type] or ""
    head_cache.popped(job.type, job.place, job.lane, before, after, next_enqueued, choice.settings)
    choice.places[job.nth], choice.oldest[job.nth] = nil, nil
end

-- The heads of `type` are others now.
local function changed(choice, type)
    for nth, each in ipairs(choice.types) do
        if each == type then
            choice.places[nth], choice.oldest[nth] = nil, nil
        end
    end
end

-- RETURNS a choice among the jobs of `types`, a table with the functions `first`, `popped` and `changed`. `heads`: type
-- -> its heads; the caller changes these, and says so (`popped`, `changed`). `kept_back`: what `reserves.among`
-- returned, whose answers change with the free slots; nil without reserves. `served`: the list of all types of a
-- worker, if that very table returns in later calls: then `best_types` makes the choice, where it may; else false or
-- nil.
-- Within an arrow time stands still, and all lanes of a type have one rarity: so the head of a type that goes first
-- stays the first until the heads of the type change. By the position of a type: places, points: the place of this
-- head, and its points without rarity; oldest: the place of the oldest head; capacities: the slots, false until they
-- are read. A table that is made with nils in it has room for as many values.
function job_choice.among(types, heads, view, kept_back, served)
    local settings, text = settings_in_force.for_a_claim()
    if served and #types > 1 and view.fits_all and not kept_back and best_types.may_choose(settings) then
        return best_types.choice(served, heads, settings, text)
    end
    return {
        types = types, heads = heads, view = view, settings = settings, kept_back = kept_back,
        places = { nil, nil, nil, nil }, points = { nil, nil, nil, nil }, oldest = {}, capacities = false,
        first = first, popped = popped, changed = changed, first_head = head_cache.first,
    }
end

local function first_head(_, heads, settings)
    return head_cache.first_of_some(heads, settings)
end

-- RETURNS the job that goes first among those of tenants that have less than their minimum; nil if no free slot fits
-- any. `heads`: type -> its first heads. Such a claim goes by score, and is not counted.
function job_choice.below_minimum(types, heads, view, kept_back)
    local choice = job_choice.among(types, heads, view, kept_back)
    choice.first_head = first_head
    local nth, place = first_type(choice, false)
    return nth and lanes.job(types[nth], heads[types[nth]], place)
end
