-- half_life: the tag of a tenant if slot-time counts half as much after each half-life (`shares`). The tag is
-- log2(sum of u * 2 ^ (t / half-life)) over all slot-time that the tenant used: u, µs divided by the tenant's weight,
-- at the time t since the epoch. All parts halve alike as time goes by, so the order of tags stays, and a tag is
-- written only when the tenant uses more.
-- Only sums and products: so each server has the last bit that the twin in Python has (`policy/score.py`).
local LOG2_OF_E = 1.4426950408889634
local LN_2 = 0.6931471805599453
local ROOT_OF_HALF = 0.7071067811865476
local FORGOTTEN_AFTER = 10 -- half-lives

-- RETURNS the logarithm, to the base 2, of a number above 0: that of its mantissa m is 2 atanh((m - 1) / (m + 1)).
local function log2(number)
    local m, exponent = math.frexp(number)
    if m < ROOT_OF_HALF then
        m, exponent = m * 2, exponent - 1
    end
    local y = (m - 1) / (m + 1)
    local square, sum = y * y, 0
    for n = 21, 1, -2 do
        sum = sum * square + 1 / n
    end
    return exponent + 2 * y * sum * LOG2_OF_E
end

-- RETURNS 2 to the power of a number up to 0, by the series of e to the power of its fraction.
local function exp2(number)
    local whole = math.floor(number)
    local x, sum = (number - whole) * LN_2, 1
    for n = 20, 1, -1 do
        sum = 1 + sum * x / n
    end
    return whole < -1000 and 0 or math.ldexp(sum, whole)
end

-- RETURNS the tag after `us` by weight, more than 0, were used by now. `tag`: that of before, 0 for none.
function half_life.after(tag, us, half_life_us)
    local added = log2(us) + call.now_us / half_life_us
    if tag == 0 then -- 0 is no tag: as one, it would count if the half-life is many years
        return added
    end
    local greater = math.max(tag, added)
    return greater + log2(1 + exp2(math.min(tag, added) - greater))
end

-- RETURNS the tag of who used the slot-time of a half-life ten half-lives ago: a lower one is forgotten.
function half_life.least(half_life_us)
    return log2(half_life_us) + call.now_us / half_life_us - FORGOTTEN_AFTER
end
