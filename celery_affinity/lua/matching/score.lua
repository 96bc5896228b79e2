-- score: computes the score of a job, which decides the job claimed first. The sum equals the sum in `policy/score.py`
-- to the last bit, in whole micro-points. Its terms are a constant part (`standing`), a part that grows with age
-- (`patience`) and a part common to all jobs of a type (`rarity`). A claim therefore computes each term once.
-- `head_cache` adds the first two terms, and rarity if all types fit a free slot; otherwise `job_choice` adds rarity.
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

function score.rarity(slots_that_fit, settings)
    return math.floor(settings.rarity_weight * MICRO / slots_that_fit)
end

-- Returns true if the claim with `claim_number` (from 0) gets the oldest job instead of the job with the highest score.
function score.goes_by_age(claim_number, priority_percentage)
    return claim_number * priority_percentage % 100 >= priority_percentage
end

-- Returns true if a job is older than another one, which decides between equal scores. Ties go to the smaller id.
function score.is_older(enqueued_us, id, other_enqueued_us, other_id)
    if enqueued_us ~= other_enqueued_us then
        return enqueued_us < other_enqueued_us
    end
    return id < other_id
end

-- Returns the same for two tables with `enqueued` and `id`.
function score.is_before(job, other)
    return score.is_older(tonumber(job.enqueued), job.id, tonumber(other.enqueued), other.id)
end
