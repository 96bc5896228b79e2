-- lane_names: the lanes that a type can have.
-- @include placing/lanes.lua

-- RETURNS the names of all lanes of a type.
local function lane_names()
    local names = {}
    for _, mode in ipairs({ "queued", "demand" }) do
        for priority = 0, protocol.MAX_PRIORITY do
            names[#names + 1] = lanes.name(mode, priority)
        end
    end
    return names
end
