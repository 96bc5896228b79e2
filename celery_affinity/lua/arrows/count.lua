-- count: a worker hands over what it added up of its jobs: waits, times in a slot and ends, for observers alone.
-- RETURNS 1; 0 if the worker is unknown, which then joins, and hands over once more. A number that was counted before
-- changes nothing.
-- Cost: O(fields), of which one call has little more than MOST_FIGURES.
local OF_A_TYPE = 5 -- values before the fields of a type

function arrows.count(ARGV)
    local worker = ARGV[1]
    local number = tonumber(ARGV[2]) -- grows with each call that is not a repetition
    -- ARGV[3..]: of each type: type, jobs that ended in a slot, sum of their times, µs, the worker's pace
    -- (rules/pace.py; "" if none ended), how many fields follow; and of each field of its figures: name, by how much
    -- it grows

    local profile, counted = unpack(redis.call("HMGET", key.worker(worker), "profile", "counted"))
    if not profile then
        return 0
    elseif number <= (tonumber(counted) or 0) then
        return 1
    end
    -- First: a call that a spoiled key ends is repeated, and shall rather lose figures than count them twice.
    redis.call("HSET", key.worker(worker), "counted", number)
    local at = 3
    while ARGV[at] do
        local type, ended, sum_us, pace, fields = unpack(ARGV, at, at + OF_A_TYPE - 1)
        local first = at + OF_A_TYPE
        at = first + 2 * tonumber(fields)
        local is_served = redis.call("HEXISTS", key.capacity, type) == 1
        figures.add(type, is_served, ARGV, first, at - 1)
        if pace ~= "" then
            redis.call("HSET", key.worker(worker), "took:" .. type, pace)
        end
        if is_served and ended ~= "0" then -- else the average went with the last worker that served the type
            figures.average(type, tonumber(ended), tonumber(sum_us))
        end
    end
    return 1
end
