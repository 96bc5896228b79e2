-- job_choice: chooses the best head of several types, by score or by age only.
-- The file is long because all functions share one table, the state of a choice in one invocation.
--
-- Cost: grows with the types that have pending jobs, and with the lanes of types whose best heads are not cached.

-- Returns true if the next job is chosen by age only.
local function goes_by_age(settings)
    if settings.priority_percentage == 100 then
        return false
    end
    return score.goes_by_age(tonumber(redis.call("GET", key.claim_number) or 0), settings.priority_percentage)
end

-- Counts a claim with a choice. Does not write if no claims are made by age.
local function count_claim(settings)
    if settings.priority_percentage ~= 100 then
        redis.call("INCR", key.claim_number)
    end
end

-- Returns the rarity points of the `nth` type in a choice.
function job_choice.rarity(choice, nth)
    local settings, type = choice.settings, choice.types[nth]
    if settings.rarity == "free" then
        return score.rarity(choice.view:free_for(type), settings)
    end
    choice.capacities = choice.capacities or lanes.fields(key.capacity, choice.types)
    return score.rarity(choice.capacities[nth] or 1, settings)
end

-- Returns the place and the score of the best head in `heads`, the heads of the `nth` type. The score can lack the
-- rarity if it is below `least`.
local function best_head(choice, nth, heads, by_age, least)
    if by_age then
        choice.oldest[nth] = choice.oldest[nth] or head_cache.oldest(heads)
        return choice.oldest[nth], 0
    end
    local settings = choice.settings
    local place, points = choice.places[nth], choice.points[nth]
    if not place then
        place, points = choice.first_head(choice.types[nth], heads, settings)
        choice.places[nth], choice.points[nth] = place, points
    end
    if #choice.types > 1 and points + settings.most_rarity >= least then
        points = points + job_choice.rarity(choice, nth)
    end
    return place, points
end

-- Does the same as `best_head` for the best head in `open`, a part of the type's heads.
local function best_open(choice, nth, open, by_age)
    if open == "" then
        return nil
    end
    local place, points
    if by_age then
        place, points = head_cache.oldest(open), 0
    else
        place, points = head_cache.first_of_some(open, choice.settings)
        points = points + job_choice.rarity(choice, nth)
    end
    return lanes.place(choice.heads[choice.types[nth]], (lanes.at(open, place))), points
end

-- Returns the position of the type with the best head that fits a free slot, and the head's place, or nil.
local function first_type(choice, by_age)
    local types, heads, view, reserve_filter = choice.types, choice.heads, choice.view, choice.kept_back
    local first, first_place
    local best_points = -math.huge
    for nth, type in ipairs(types) do
        local type_heads = heads[type]
        if type_heads and view:any_free(type) then
            local open = reserve_filter and reserve_filter.open(type, type_heads, view) or type_heads
            local place, points
            if open == type_heads then
                place, points = best_head(choice, nth, type_heads, by_age, best_points)
            else
                place, points = best_open(choice, nth, open, by_age)
            end
            if place and (points > best_points or (points == best_points
                and head_cache.is_older(type_heads, place, heads[types[first]], first_place))) then
                first, first_place, best_points = nth, place, points
            end
        end
    end
    return first, first_place
end

-- Returns the best job that fits a free slot, or nil, and true if it was chosen by age only.
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

-- Updates the choice after `job` was popped from the heads of its type.
--   before: the heads before.
--   next_enqueued: enqueue time of the next job of its lane, or nil.
local function popped(choice, job, before, next_enqueued)
    local after = choice.heads[job.type] or ""
    head_cache.popped(job.type, job.place, job.lane, before, after, next_enqueued, choice.settings)
    choice.places[job.nth], choice.oldest[job.nth] = nil, nil
end

-- Updates the choice after the heads of `type` have changed.
local function changed(choice, type)
    for nth, other in ipairs(choice.types) do
        if other == type then
            choice.places[nth], choice.oldest[nth] = nil, nil
        end
    end
end

-- Returns a choice from the jobs of `types`, a table with the functions `first`, `popped` and `changed`.
--   heads: type -> its heads; the caller changes these and then calls `popped` or `changed`.
--   reserve_filter: result of `reserves.among`, which depends on the free slots; nil without reserves.
--   served: the list of a worker's types, if later invocations use the same table: `best_types` then makes the
--     choice, if the settings permit it. Otherwise false or nil.
-- Time is constant in a server function, and all lanes of a type have one rarity. The best head of a type therefore
-- stays the best until the heads of the type change. Fields by position of a type:
--   places, points: place of this head, and its points without rarity.
--   oldest: place of the oldest head.
--   capacities: number of slots, false until they are read.
-- Tables are created with nils to preallocate space for as many values.
function job_choice.among(types, heads, view, reserve_filter, served)
    local settings, text = settings_in_force.for_a_claim()
    if served and #types > 1 and view.fits_all and not reserve_filter and best_types.may_choose(settings) then
        return best_types.choice(served, heads, settings, text)
    end
    return {
        types = types, heads = heads, view = view, settings = settings, kept_back = reserve_filter,
        places = { nil, nil, nil, nil }, points = { nil, nil, nil, nil }, oldest = {}, capacities = false,
        first = first, popped = popped, changed = changed, first_head = head_cache.first,
    }
end

local function first_head(_, heads, settings)
    return head_cache.first_of_some(heads, settings)
end

-- Returns the best job of tenants below their minimum, or nil if no free slot fits any. Such a claim is made by score,
-- and is not counted.
--   heads: type -> its minimum heads.
function job_choice.below_minimum(types, heads, view, reserve_filter)
    local choice = job_choice.among(types, heads, view, reserve_filter)
    choice.first_head = first_head
    local nth, place = first_type(choice, false)
    return nth and lanes.job(types[nth], heads[types[nth]], place)
end
