-- key_portions: which sub-lanes of a key change in this call. A key may have very many: jobs come to stand in the lanes
-- of MOST_OPENED sub-lanes at most, and leave the lanes of twice as many; a tick goes on with the others.

-- RETURNS `sublanes` by the age of their first jobs, the oldest first; and again the most urgent first.
local function by_age_and_urgency(sublanes)
    local texts, of_text = {}, {}
    for nth, sublane in ipairs(sublanes) do
        texts[nth] = sublane.enqueued .. " " .. sublane.first -- times have as many digits as each other
        of_text[texts[nth]] = sublane
    end
    table.sort(texts)
    local by_age, of_lane, by_urgency, names = {}, {}, {}, lanes.names()
    for nth, text in ipairs(texts) do
        local sublane = of_text[text]
        by_age[nth] = sublane
        of_lane[sublane.lane] = of_lane[sublane.lane] or {}
        table.insert(of_lane[sublane.lane], sublane)
    end
    for nth = #names, 1, -1 do
        for _, sublane in ipairs(of_lane[names[nth]] or {}) do
            by_urgency[#by_urgency + 1] = sublane
        end
    end
    return by_age, by_urgency
end

-- RETURNS those of `sublanes` that gain another job now: of more than the call may change, the oldest ones and the most
-- urgent, so that neither have to wait for a tick.
local function opened_now(sublanes)
    local keys = key_rows.of_call()
    if #sublanes > keys.left_to_open then
        local some, is_in = {}, {}
        local by_age, by_urgency = by_age_and_urgency(sublanes)
        for nth = 1, math.ceil(keys.left_to_open / 2) do
            for _, sublane in ipairs({ by_age[nth], by_urgency[nth] }) do
                some[#some + 1] = not is_in[sublane] and sublane or nil
                is_in[sublane] = true
            end
        end
        sublanes = some
    end
    keys.left_to_open = math.max(0, keys.left_to_open - #sublanes)
    return sublanes
end

-- RETURNS those of `sublanes` whose jobs leave their lanes now.
local function closed_now(sublanes)
    local keys = key_rows.of_call()
    local number = math.min(#sublanes, keys.left_to_close)
    keys.left_to_close = keys.left_to_close - number
    return number == #sublanes and sublanes or { unpack(sublanes, 1, number) }
end

-- Has some of the sub-lanes of a key change, as many as this call may. `wanted`: sub-lane -> the job that is to stand
-- in its lane, of those where another one does. A tick goes on with the others; until then no job that stands in vain
-- starts (`may_start`). RETURNS those that change.
function key_portions.changed_now(its_key, wanted)
    local opened, closed = {}, {}
    for sublane, job in pairs(wanted) do
        local some = job == "" and closed or opened
        some[#some + 1] = sublane
    end
    local number = #opened + #closed
    local changed = closed_now(closed)
    for _, sublane in ipairs(opened_now(opened)) do
        changed[#changed + 1] = sublane
    end
    if #changed < number then
        key_rows.of_call().is_unfinished = true
        if redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key) == 1 then
            workers.have_one_tick()
        end
    end
    return changed
end
