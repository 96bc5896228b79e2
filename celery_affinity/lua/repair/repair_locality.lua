-- repair_locality: what follows from hints of jobs and workers: near lanes, their heads, and the holders of hints.

-- Fixes the heads in `field`, those of jobs of `type` with `hint`. `lane`: one that may not be among them.
local function fix_heads(field, hint, type, lane)
    local names = { lane }
    for each in lanes.each(derived.fields(key.near_heads, field) or "") do
        names[#names + 1] = hint and lanes.is_one(each) and each or nil
    end
    return repair_types.fix_heads(key.near_heads, field, hint and locality.place_of(hint, type), names)
end

-- Job `id` is in its lane since `time`. If it has a hint, it is in its near lane as well. RETURNS whether that
-- differed.
function repair_locality.fix_job(id, type, lane, time)
    local hint = marks.has_hint(id) and rule_texts.hint(derived.fields(key.job(id), "rules") or nil)
    if not hint then
        return false
    end
    local field = locality.field_of(hint, type)
    local differs = derived.one("zset", key.near_lane(hint, type, lane), id, time)
    if differs or not lanes.place(derived.fields(key.near_heads, field) or "", lane) then
        return fix_heads(field, hint, type, lane) or differs
    end
    return false
end

-- Fixes the near lanes of the hint and type that a field of key `near_heads` is of.
function repair_locality.fix(field)
    local hint, type = locality.parts_of(field)
    for lane in lanes.each(hint and derived.fields(key.near_heads, field) or "") do
        if lanes.is_one(lane) then
            derived.keep(key.near_lane(hint, type, lane), function(id)
                return derived.score(key.lane(type, lane), id)
            end)
        end
    end
    fix_heads(field, hint, type)
end

-- Fixes the hints of a worker, which has a row: it is among their holders, and these hold them.
function repair_locality.fix_worker(worker)
    local hints = derived.members(key.hints(worker), 0)
    for _, hint in ipairs(hints) do
        derived.one("zset", key.holders(hint), worker, derived.any_or(derived.score(key.hints(worker), hint)))
        derived.keep(key.holders(hint), function(other)
            return derived.score(key.hints(other), hint)
        end)
    end
    derived.one("hash", key.worker(worker), "hints", #hints > 0 and locality.words(hints))
end
