-- half_life: computes a tenant's tag when the weight of used slot-time halves per half-life (`fair_share`). The tag is
-- log2(sum of u * 2 ^ (t / half-life)) over all slot-time that the tenant used. u is the slot-time in µs divided by the
-- tenant's weight, and t the time of use since the epoch. All terms decay equally, so the order of tags is stable, and
-- a tag is written only when the tenant uses more.
-- The functions use only sums and products, so each server computes the same last bit as `policy/score.py`.
local LOG2_OF_E = 1.4426950408889634
local LN_2 = 0.6931471805599453
local ROOT_OF_HALF = 0.7071067811865476
local FORGOTTEN_AFTER = 10 -- half-lives

-- Returns the base-2 logarithm of a positive number. For its mantissa m, ln m is 2 atanh((m - 1) / (m + 1)).
local function log2(number)
    local m, exponent = math.frexp(number)
    if m < ROOT_OF_HALF then
        m, exponent = m * 2, exponent - 1
    end
    local ratio = (m - 1) / (m + 1)
    local square, sum = ratio * ratio, 0
    for n = 21, 1, -2 do
        sum = sum * square + 1 / n
    end
    return exponent + 2 * ratio * sum * LOG2_OF_E
end

-- Returns 2 to the power of a number that is not positive. A series computes e to the power of the fraction.
local function exp2(number)
    local whole = math.floor(number)
    local x, sum = (number - whole) * LN_2, 1
    for n = 20, 1, -1 do
        sum = 1 + sum * x / n
    end
    return whole < -1000 and 0 or math.ldexp(sum, whole)
end

-- Returns the tag after a use of `us` (positive, already divided by the weight) that ends now.
--   tag: the tag before, 0 if there is none.
function half_life.after(tag, us, half_life_us)
    local added = log2(us) + call.now_us / half_life_us
    if tag == 0 then -- 0 means no tag: with a half-life of many years, it would matter as a tag
        return added
    end
    local greater = math.max(tag, added)
    return greater + log2(1 + exp2(math.min(tag, added) - greater))
end

-- Returns the tag of a tenant that used one half-life of slot-time ten half-lives ago. Lower tags are deleted.
function half_life.least(half_life_us)
    return log2(half_life_us) + call.now_us / half_life_us - FORGOTTEN_AFTER
end
