-- figures: what observers are told of the jobs of a type (rules/figures.py has the fields). No arrow goes by them.

-- Adds to the figures of a type, which a day after the type's last worker go. `changes[first]` up to `changes[last]`:
-- a field, by how much it grows, and so on. `is_served`: whether live workers serve the type.
function figures.add(type, is_served, changes, first, last)
    for i = first, last, 2 do
        redis.call("HINCRBY", key.figures(type), changes[i], changes[i + 1])
    end
    if not is_served then
        redis.call("EXPIRE", key.figures(type), protocol.FIGURES_KEPT_S)
    end
end

-- Has the moving average of a type's times in a slot go by `number` more, whose sum is `sum_us`:
-- average + (sum - number * average) / max(number, AVERAGED_OVER), rounded down; the first average is sum / number.
function figures.average(type, number, sum_us)
    local average_us = tonumber(redis.call("HGET", key.durations, type))
    if average_us then
        local by_us = (sum_us - number * average_us) / math.max(number, protocol.AVERAGED_OVER)
        average_us = average_us + math.floor(by_us)
    else
        average_us = math.floor(sum_us / number)
    end
    redis.call("HSET", key.durations, type, call.text(average_us))
end
