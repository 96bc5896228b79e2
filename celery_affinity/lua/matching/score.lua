-- score: which job goes first. The sum equals that of score.py to the last bit, in whole micro-points. Its terms are
-- split into what never changes (`standing`), what grows with age (`patience`), and what is equal for all jobs of a
-- type (`rarity`), so that a claim computes each term once.
-- Who adds them up: `best_heads` the first two, for the heads of one type; `which_job` adds rarity, and compares types.
-- `best_types` does so instead of it where a free slot fits all types, with fewer steps for each of them.
local MICRO = 1000000

function score.standing(priority, on_demand, settings)
    if settings.priority_reversed == 1 then
        priority = protocol.MAX_PRIORITY - priority
    end
    local urgency = on_demand and math.floor(settings.on_demand_weight * MICRO) or 0
    return math.floor(priority * settings.priority_weight * MICRO) + urgency
end

function score.patience(on_demand, age_us, settings)
    if age_us < 0 then
        return 0
    end
    local points = math.floor(age_us * settings.age_weight)
    if on_demand then
        points = points + math.floor(math.min(age_us, settings.on_demand_age_cap_us) * settings.on_demand_age_weight)
    end
    return points
end

-- RETURNS by how many points a job grows in so many µs; and a job on demand that stays below the cap of its age.
function score.growth(us, settings)
    return us * settings.age_weight, us * (settings.age_weight + settings.on_demand_age_weight)
end

function score.rarity(slots_that_fit, settings)
    return math.floor(settings.rarity_weight * MICRO / slots_that_fit)
end

-- RETURNS whether the claim with `claim_number` (from 0) goes to the oldest job instead of the one with the highest
-- score.
function score.goes_by_age(claim_number, priority_percentage)
    return claim_number * priority_percentage % 100 >= priority_percentage
end

-- RETURNS whether a job is older than another one: of two jobs with one score it goes first. Ties go to the smaller id.
function score.is_older(enqueued_us, id, others_enqueued_us, others_id)
    if enqueued_us ~= others_enqueued_us then
        return enqueued_us < others_enqueued_us
    end
    return id < others_id
end
