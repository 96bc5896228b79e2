-- flat: converts Redis replies of the form member, value, member, value, ... (a hash, or a sorted set with scores).

-- Returns the members in their order.
function flat.members(list)
    local members = {}
    for i = 1, #list, 2 do
        members[#members + 1] = list[i]
    end
    return members
end

-- Returns a table: member -> value.
function flat.values(list)
    local values = {}
    for i = 1, #list, 2 do
        values[list[i]] = list[i + 1]
    end
    return values
end
