-- repair_locality: fixes data derived from hints of jobs and workers: hint lanes, their heads, and holders of hints.

-- Fixes the heads in `field`, for jobs of `type` with `hint`.
--   lane: a lane that may be missing there.
local function fix_heads(field, hint, type, lane)
    local names = { lane }
    for lane_name in lanes.each(rebuild.fields(key.hint_heads, field) or "") do
        names[#names + 1] = hint and lanes.is_one(lane_name) and lane_name or nil
    end
    return repair_types.fix_heads(key.hint_heads, field, hint and locality.place_of(hint, type), names)
end

-- Adds job `id`, in its lane since `time`, to its hint lane if it has a hint. Returns true if anything differed.
function repair_locality.fix_job(id, type, lane, time)
    local hint = id_suffix.has_hint(id) and rules_codec.hint(rebuild.fields(key.job(id), "rules") or nil)
    if not hint then
        return false
    end
    local field = locality.field_of(hint, type)
    local differs = rebuild.one("zset", key.hint_lane(hint, type, lane), id, time)
    if differs or not lanes.place(rebuild.fields(key.hint_heads, field) or "", lane) then
        return fix_heads(field, hint, type, lane) or differs
    end
    return false
end

-- Fixes the hint lanes of one field of key `near_heads`, which names a hint and a type.
function repair_locality.fix(field)
    local hint, type = locality.parts_of(field)
    for lane in lanes.each(hint and rebuild.fields(key.hint_heads, field) or "") do
        if lanes.is_one(lane) then
            rebuild.keep(key.hint_lane(hint, type, lane), function(id)
                return rebuild.score(key.lane(type, lane), id)
            end)
        end
    end
    fix_heads(field, hint, type)
end

-- Makes the hints of a worker with a hash agree with the holders of these hints.
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
