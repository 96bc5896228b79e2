-- repair_minimums: rebuilds minimum lanes and their heads in key `first_heads`. Admitted jobs of tenants below their
-- minimum must be in a minimum lane if their sub-lanes list them there.

-- Returns true if the sub-lane of its tenant lists job `id` in a minimum lane.
local function belongs_in_minimum_lane(id, type, lane)
    local job_keys = rules_codec.keys(rebuild.fields(key.job(id), "rules") or nil)
    local tenant = job_keys[#job_keys]
    local stored = tenant and repair_keyed.written(tenant.key, type, lane)
    return stored and stored.is_first and stored.standing == id
end

-- Fixes the minimum lanes of a type, and their heads.
function repair_minimums.fix(type)
    for _, lane in ipairs(lanes.NAMES) do
        rebuild.keep(key.minimum_lane(type, lane), function(id)
            return belongs_in_minimum_lane(id, type, lane)
        end)
    end
    repair_types.fix_heads(key.minimum_heads, type, minimums.place_of(type))
end

-- Fixes the minimum lanes for the sub-lanes of a tenant.
function repair_minimums.fix_tenant(job_key)
    for _, sublane in pairs(key_state.read(job_key).sublanes) do
        local type, lane, id = sublane.type, sublane.lane, sublane.standing
        local differs = sublane.is_first and id ~= ""
            and rebuild.one("zset", key.minimum_lane(type, lane), id, key_state.enqueued_of(job_key, sublane, id))
        if differs or (sublane.is_first and not lanes.place(rebuild.fields(key.minimum_heads, type) or "", lane)) then
            repair_types.fix_heads(key.minimum_heads, type, minimums.place_of(type))
        end
    end
end
