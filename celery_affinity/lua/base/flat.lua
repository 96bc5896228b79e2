-- flat: what Redis says of a hash, or of a sorted set with scores: a list of member, value, member, value, ...

-- RETURNS its members, in their order.
function flat.members(list)
    local members = {}
    for i = 1, #list, 2 do
        members[#members + 1] = list[i]
    end
    return members
end

-- RETURNS a table: member -> value.
function flat.values(list)
    local of = {}
    for i = 1, #list, 2 do
        of[list[i]] = list[i + 1]
    end
    return of
end
