-- repair_minimums: makes first lanes, and their heads in key `first_heads`, again. Jobs of tenants that are below their
-- minimum go first: those whose sub-lanes say so must be in a first lane.

-- RETURNS whether job `id` goes first, as the sub-lane of its tenant says.
local function goes_first(id, type, lane)
    local its_keys = rules_codec.keys(rebuild.fields(key.job(id), "rules") or nil)
    local tenant = its_keys[#its_keys]
    local written = tenant and repair_keyed.written(tenant.key, type, lane)
    return written and written.is_first and written.standing == id
end

-- Fixes the first lanes of a type, and their heads.
function repair_minimums.fix(type)
    for _, lane in ipairs(lanes.NAMES) do
        rebuild.keep(key.first_lane(type, lane), function(id)
            return goes_first(id, type, lane)
        end)
    end
    repair_types.fix_heads(key.first_heads, type, minimums.place_of(type))
end

-- Fixes the first lanes of a tenant, which are of the sub-lanes that say so.
function repair_minimums.fix_tenant(its_key)
    for _, sublane in pairs(key_state.read(its_key).sublanes) do
        local type, lane, id = sublane.type, sublane.lane, sublane.standing
        local differ = sublane.is_first and id ~= ""
            and rebuild.one("zset", key.first_lane(type, lane), id, key_state.enqueued_of(its_key, sublane, id))
        if differ or (sublane.is_first and not lanes.place(rebuild.fields(key.first_heads, type) or "", lane)) then
            repair_types.fix_heads(key.first_heads, type, minimums.place_of(type))
        end
    end
end
