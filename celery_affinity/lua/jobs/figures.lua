-- figures: what observers are told of the jobs of a type (rules/figures.py has the fields). No script reads them.
local NUMBERS = "000102030405060708091011121314151617181920212223242526272829" -- as texts: Lua writes numbers slowly

-- Counts a time of a job of `type`, by powers of two. `kind`: whose it is: "queued", "demand"; "done", "failed" ...
-- The sum of the times of a kind grows by the first ones of each size, and then by one in SAMPLED_ONE_IN for all: times
-- of one size are nearly alike. RETURNS how many there are of this kind and size.
function figures.count(type, kind, us)
    local name, bucket = key.figures(type), 0
    if us > protocol.SMALLEST_BUCKET_US then
        local fraction
        fraction, bucket = math.frexp(us / protocol.SMALLEST_BUCKET_US)
        bucket = math.min(fraction == 0.5 and bucket - 1 or bucket, protocol.LARGEST_BUCKET + 1)
    end
    local number = string.sub(NUMBERS, 2 * bucket + 1, 2 * bucket + 2)
    local nth = redis.call("HINCRBY", name, kind .. " " .. number, "1")
    if nth <= protocol.EXACT_UP_TO or nth % protocol.SAMPLED_ONE_IN == protocol.SAMPLE_AT then
        local counts_for = nth <= protocol.EXACT_UP_TO and 1 or protocol.SAMPLED_ONE_IN
        us = math.min(math.max(us, 0), protocol.SMALLEST_BUCKET_US * 2 ^ protocol.LARGEST_BUCKET)
        redis.call("HINCRBY", name, kind .. " sum", string.format("%.0f", us * counts_for))
    end
    return nth
end
