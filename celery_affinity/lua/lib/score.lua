-- score: which job first. The same code as score.py, to the last bit: whole micro-points.
local score = {}
local MICRO = 1000000

function score.of(priority, on_demand, age_us, slots_that_fit, settings)
    if settings.turned == 1 then
        priority = 10 - priority
    end
    age_us = math.max(0, age_us)
    local urgency = 0
    if on_demand then
        local capped_us = math.min(age_us, settings.on_demand_age_cap_us)
        urgency = math.floor(settings.on_demand_weight * MICRO)
            + math.floor(capped_us * settings.on_demand_age_weight)
    end
    return math.floor(priority * settings.priority_weight * MICRO)
        + math.floor(age_us * settings.age_weight)
        + math.floor(settings.rarity_weight * MICRO / slots_that_fit)
        + urgency
end

-- Whether claim number `turn` (from 0) takes the oldest job instead of the one with the highest score.
function score.goes_by_age(turn, priority_percentage)
    return turn * priority_percentage % 100 >= priority_percentage
end

-- Ties: the older job, then the smaller id.
function score.overtakes(first, second)
    if first.score ~= second.score then
        return first.score > second.score
    end
    if first.enqueued_us ~= second.enqueued_us then
        return first.enqueued_us < second.enqueued_us
    end
    return first.id < second.id
end
