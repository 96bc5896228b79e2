-- run_times: learns the run time of each task from the runs that workers report. `policy/run_times` explains the
-- formulas, and computes them in the same order, so that both sides get the same floating-point numbers.
--
-- Returns of `read`: runs, time of the last run in µs, and the sums n, x, y, q, r and a.

local VALUE = "^(%d+) (%d+) ([%d.e+-]+) ([%d.e+-]+) ([%d.e+-]+) ([%d.e+-]+) ([%d.e+-]+) ([%d.e+-]+)$"
local MAX_LENGTH = 250 -- of a value
local KEPT_SHARE = 0.9 -- of the tasks, if there are too many

local function is_positive(sum)
    return sum and sum > 0 and sum < math.huge
end

-- Returns the numbers in the value of a task, or zeros if the value is missing or damaged.
local function read(value)
    if value and #value <= MAX_LENGTH then
        local runs, last_us, n, x, y, q, r, a = string.match(value, VALUE)
        runs, last_us, n, x, y = tonumber(runs), tonumber(last_us), tonumber(n), tonumber(x), tonumber(y)
        q, r, a = tonumber(q), tonumber(r), tonumber(a)
        local is_valid = runs and runs > 0 and runs <= protocol.MAX_COUNTED_RUNS and is_positive(n) and is_positive(x)
            and is_positive(y) and is_positive(q) and is_positive(r) and (a == 0 or is_positive(a))
        if is_valid then
            return runs, last_us, n, x, y, q, r, a
        end
    end
    return 0, 0, 0, 0, 0, 0, 0, 0
end

-- Returns the run time for size 0, and the additional run time per unit of size.
local function line(n, x, y, q, r)
    local products, squares = q * x, n * n
    if n < protocol.MIN_RUNS or products < protocol.MIN_SPREAD * squares then
        return y / n, 0
    end
    local slope = (q * y - n * r) / (products - squares)
    local base = (r * x - n * y) / (products - squares)
    if base < 0 then
        return 0, y / x
    elseif slope < 0 then
        return y / n, 0
    end
    return base, slope
end

-- Returns the size to use in the sums. `size`: the size of the run, or nil or false if it is unknown.
local function used_size(size, n, x)
    if n == 0 then
        return size and size >= protocol.MIN_SIZE and size or 1
    end
    local mean = x / n
    return math.max(size or mean, protocol.MIN_RELATIVE_SIZE * mean, protocol.MIN_SIZE)
end

-- Returns `value` after the runs in `text`: for each run its size ("-" if it is unknown) and its time in µs. `number`:
-- number of runs, including runs that precede the ones in `text`.
local function added(value, number, text)
    local runs, _, n, x, y, q, r, a = read(value)
    local decay = protocol.RUN_DECAY
    local size_of_run, time_of_run = {}, {}
    for size, took_us in string.gmatch(text, " (%S+) (%d+)") do
        size_of_run[#size_of_run + 1], time_of_run[#time_of_run + 1] = tonumber(size) or false, tonumber(took_us)
    end
    local counted = number - #time_of_run + 1 -- with the first of the last runs, those before them
    for i, took_us in ipairs(time_of_run) do
        local size, predicted = used_size(size_of_run[i], n, x), 0
        local took = math.min(math.max(took_us, 1), protocol.MAX_RUN_US)
        if n > 0 then
            local base, slope = line(n, x, y, q, r)
            predicted = base + slope * size
        end
        if runs >= protocol.MIN_RUNS then
            took = math.min(took, protocol.MAX_TIMES_EXPECTED * predicted)
        end
        runs, counted = math.min(runs + counted, protocol.MAX_COUNTED_RUNS), 1
        n, x, y, q, r, a = decay * n + 1, decay * x + size, decay * y + took, decay * q + 1 / size,
            decay * r + took / size, decay * a + math.abs(took - predicted)
    end
    return string.format("%.0f %s %.17g %.17g %.17g %.17g %.17g %.17g", runs, call.now, n, x, y, q, r, a)
end

-- Drops the tasks without a run for the longest time, a tenth of them, so that it happens rarely. If another client has
-- added thousands of fields, all are dropped.
local function drop_oldest(number)
    if number > 2 * protocol.MAX_TASKS_LEARNED then
        redis.call("UNLINK", key.run_times)
        return
    end
    local last_us, names = {}, {}
    local values = redis.call("HGETALL", key.run_times)
    for i = 1, #values, 2 do
        names[#names + 1] = values[i]
        last_us[values[i]] = tonumber(string.match(values[i + 1], "^%d+ (%d+) ") or 0)
    end
    table.sort(names, function(one, other)
        if last_us[one] ~= last_us[other] then
            return last_us[one] > last_us[other]
        end
        return one < other
    end)
    for i = math.floor(KEPT_SHARE * protocol.MAX_TASKS_LEARNED) + 1, #names do
        redis.call("HDEL", key.run_times, names[i])
    end
end

-- Returns the expected run time in µs of a job, and the typical error as a fraction of it: of its task, or else of its
-- type, with an error of 0. Returns nil if neither is known. `size`: its size, or nil if it is unknown.
function run_times.expected(type, name, size)
    local encoded = string.gsub(name, "[^%w_.~-]", function(byte)
        return string.format("%%%02X", string.byte(byte))
    end)
    local _, _, n, x, y, q, r, a = read(redis.call("HGET", key.run_times, encoded))
    if n > 0 then
        local base, slope = line(n, x, y, q, r)
        return base + slope * used_size(size, n, x), a / y
    end
    local usual_us = string.match(redis.call("HGET", key.durations, type) or "", "^%d+$")
    return usual_us and #usual_us <= protocol.MAX_NUMBER_LENGTH and tonumber(usual_us) or nil, 0
end

-- Adds the runs in `text`, a line for each task: name, number of runs, then size and time of the last ones.
-- Cost: O(runs), 1 µs each; one invocation has at most MAX_TASKS_ADDED * MAX_RUNS_ADDED.
function run_times.add(text)
    if text == "" then
        return
    end
    for name, number, runs in string.gmatch(text, "(%S+) (%d+)([^\n]*)") do
        local value = redis.call("HGET", key.run_times, name)
        redis.call("HSET", key.run_times, name, added(value, tonumber(number), runs))
    end
    local number = redis.call("HLEN", key.run_times)
    if number > protocol.MAX_TASKS_LEARNED then
        drop_oldest(number)
    end
    redis.call("EXPIRE", key.run_times, protocol.RUN_TIMES_KEPT_S)
end
