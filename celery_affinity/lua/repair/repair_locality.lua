-- repair_locality: what follows from hints of jobs and workers: near lanes, their heads, and the holders of hints.

-- Fixes the heads in `field`, those of jobs of `type` with `hint`. `lane`: one that may not be among them.
local function fix_heads(field, hint, type, lane)
    return derived.one("hash", key.near_heads, field, function(found)
        local of_hint, names, heads = hint and locality.place_of(hint, type), { [lane or ""] = true }, {}
        for each in lanes.each(found or "") do
            names[each] = true
        end
        local is_good, length = true, -1
        for each in pairs(names) do
            local head = hint and lanes.is_one(each) and lanes.with_new_head(of_hint, each, "", 1, 0) or ""
            if head ~= "" then
                heads[#heads + 1], length = head, length + #head + 1
                is_good = is_good and string.find(" " .. (found or "") .. " ", " " .. head .. " ", 1, true)
            end
        end
        return is_good and length == #(found or "") and found or #heads > 0 and table.concat(heads, " ")
    end)
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
            local name = key.near_lane(hint, type, lane)
            derived.with_some_of(name, function(id)
                local waits = derived.exists(key.lane(type, lane), "zset")
                    and redis.call("ZSCORE", key.lane(type, lane), id)
                return not waits and derived.one("zset", name, id, nil)
            end)
        end
    end
    fix_heads(field, hint, type)
end

-- Fixes the hints of a worker, which has a row: it is among their holders, and these hold them.
function repair_locality.fix_worker(worker)
    local hints = derived.exists(key.hints(worker), "zset")
        and redis.call("ZRANGE", key.hints(worker), 0, -1, "WITHSCORES") or {}
    local words = {}
    for i = 1, #hints, 2 do
        words[#words + 1] = hints[i]
    end
    derived.one("hash", key.worker(worker), "hints", #words > 0 and locality.words(words))
    for i = 1, #hints, 2 do
        local name = key.holders(hints[i])
        derived.one("zset", name, worker, function(found)
            return found or hints[i + 1]
        end)
        derived.with_some_of(name, function(other)
            local holds = derived.exists(key.hints(other), "zset") and redis.call("ZSCORE", key.hints(other), hints[i])
            return not holds and derived.one("zset", name, other, nil)
        end)
    end
end
