-- repair_locality: what follows from hints of jobs and workers: near lanes, their heads, and the holders of hints.

-- Fixes the heads in `field`, those of jobs of `type` with `hint`. `lane`: one that may not be among them.
local function fix_heads(field, hint, type, lane)
    local names = { lane }
    for each in lanes.each(rebuild.fields(key.near_heads, field) or "") do
        names[#names + 1] = hint and lanes.is_one(each) and each or nil
    end
    return repair_types.fix_heads(key.near_heads, field, hint and locality.place_of(hint, type), names)
end

-- Job `id` is in its lane since `time`. If it has a hint, it is in its near lane as well. RETURNS whether that
-- differed.
function repair_locality.fix_job(id, type, lane, time)
    local hint = id_suffix.has_hint(id) and rules_codec.hint(rebuild.fields(key.job(id), "rules") or nil)
    if not hint then
        return false
    end
    local field = locality.field_of(hint, type)
    local differs = rebuild.one("zset", key.near_lane(hint, type, lane), id, time)
    if differs or not lanes.place(rebuild.fields(key.near_heads, field) or "", lane) then
        return fix_heads(field, hint, type, lane) or differs
    end
    return false
end

-- Fixes the near lanes of the hint and type that a field of key `near_heads` is of.
function repair_locality.fix(field)
    local hint, type = locality.parts_of(field)
    for lane in lanes.each(hint and rebuild.fields(key.near_heads, field) or "") do
        if lanes.is_one(lane) then
            rebuild.keep(key.near_lane(hint, type, lane), function(id)
                return rebuild.score(key.lane(type, lane), id)
            end)
        end
    end
    fix_heads(field, hint, type)
end

-- Fixes the hints of a worker, which has a row: it is among their holders, and these hold them.
function repair_locality.fix_worker(worker)
    local hints = rebuild.members(key.hints(worker), 0)
    for _, hint in ipairs(hints) do
        rebuild.one("zset", key.holders(hint), worker, rebuild.any_or(rebuild.score(key.hints(worker), hint)))
        rebuild.keep(key.holders(hint), function(other)
            return rebuild.score(key.hints(other), hint)
        end)
    end
    rebuild.one("hash", key.worker(worker), "hints", #hints > 0 and locality.words(hints))
end
