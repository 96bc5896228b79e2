-- score: which job first. The same sum as in score.py, to the last bit: whole micro-points. It is split into what never
-- changes, what grows with age, and what is the same for all jobs of a type, so that a claim computes each just once.
local score = {}
local MICRO = 1000000
local floor, min = math.floor, math.min

function score.standing(priority, on_demand, settings)
    if settings.turned == 1 then
        priority = protocol.MAX_PRIORITY - priority
    end
    local urgency = on_demand and floor(settings.on_demand_weight * MICRO) or 0
    return floor(priority * settings.priority_weight * MICRO) + urgency
end

function score.patience(on_demand, age_us, settings)
    if age_us < 0 then
        return 0
    end
    local points = floor(age_us * settings.age_weight)
    if on_demand then
        points = points + floor(min(age_us, settings.on_demand_age_cap_us) * settings.on_demand_age_weight)
    end
    return points
end

function score.rarity(slots_that_fit, settings)
    return floor(settings.rarity_weight * MICRO / slots_that_fit)
end

-- Whether claim number `turn` (from 0) takes the oldest job instead of the one with the highest score.
function score.goes_by_age(turn, priority_percentage)
    return turn * priority_percentage % 100 >= priority_percentage
end

-- Which of two jobs with the same score runs first: the older one, then the one with the smaller id.
function score.is_older(enqueued_us, id, others_enqueued_us, others_id)
    if enqueued_us ~= others_enqueued_us then
        return enqueued_us < others_enqueued_us
    end
    return id < others_id
end
