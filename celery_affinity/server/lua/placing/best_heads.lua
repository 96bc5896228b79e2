-- leaders: which head of a type goes first. Heads whose scores grow alike keep their order among themselves: those of
-- queued jobs and of on-demand ones that have reached the cap ("slow"), and those of on-demand ones that have not
-- ("fast"). So what was found out by looking at all of them is noted. Who changes heads takes their note away, or
-- writes another. It is believed while the settings are the same and no fast one has reached the cap.
-- Cost: a look at 22 heads is some 20 times as dear as their note.
-- @include base/clock.lua
-- @include placing/filters.lua
-- @include placing/heads.lua
-- @include placing/score.lua
local leaders = {}
-- The revision of the settings, when the note was made, until when it holds; then of the slow heads, and of the fast: points of the best, of the next (or more), and the place of the best in the heads. As
-- numbers: a text would have to be read.
local NOTE = "<ddddddddd"
local MANY = 80 -- bytes of heads, some two: less is looked at as fast as a note is read
local NONE, NEVER = -math.huge, -1

-- RETURNS whether points grow by whole ones each µs: then no rounding changes an order.
local function grows_evenly(settings)
    return settings.age_weight % 1 == 0 and settings.on_demand_age_weight % 1 == 0
end

-- RETURNS a function that knows the points of a job by its lane and age, and whether it is fast. What a lane's name
-- says is found out once.
function leaders.scale(settings)
    local standing, on_demand = {}, {}
    return function(lane, age_us)
        if not standing[lane] then
            local is_demanded, priority = lanes.kind(lane)
            standing[lane], on_demand[lane] = score.standing(priority, is_demanded, settings), is_demanded
        end
        local is_fast = on_demand[lane] and age_us < settings.on_demand_age_cap_us
        return standing[lane] + score.patience(on_demand[lane], age_us, settings), is_fast
    end
end

-- RETURNS whether the head at `place` is of an older job than another one; ties go to the smaller id.
function leaders.is_older(heads, place, others, others_place)
    local _, enqueued, id = lanes.at(heads, place)
    local _, others_enqueued, others_id = lanes.at(others, others_place)
    return score.is_older(tonumber(enqueued), id, tonumber(others_enqueued), others_id)
end

-- What a note says after its first numbers. RETURNS the place of the head that goes first, and its points by now.
local function first_of(heads, settings, made_us, slow, slow_place, fast, fast_place)
    local since_us = clock.now_us - made_us
    slow = slow + since_us * settings.age_weight
    fast = fast + since_us * (settings.age_weight + settings.on_demand_age_weight)
    if fast > slow or (fast == slow and leaders.is_older(heads, fast_place, heads, slow_place)) then
        return fast_place, fast
    end
    return slow_place, slow
end

-- RETURNS of each of `types` the note if it has one to be believed, the place of the head that goes first, its points;
-- and all notes that there are, false where there is none.
function leaders.read(types, heads, settings)
    local notes, places, points = {}, {}, {}
    local found = lanes.fields(key.leaders, types)
    for nth, note in ipairs(found) do
        if note then
            local revision, made_us, until_us, slow, _, slow_place, fast, _, fast_place = struct.unpack(NOTE, note)
            if revision == settings.revision and made_us <= clock.now_us and clock.now_us <= until_us then
                notes[nth] = note
                places[nth], points[nth] =
                    first_of(heads[types[nth]], settings, made_us, slow, slow_place, fast, fast_place)
            end
        end
    end
    return notes, places, points, found
end

-- RETURNS the place and the points of the only head, if it is one.
function leaders.only(heads, points_of)
    local lane, enqueued = string.match(heads, "^(%S+) (%S+) %S+$")
    if lane and filters.none then
        return 1, (points_of(lane, clock.now_us - tonumber(enqueued)))
    end
end

-- RETURNS the place of the oldest job in the heads of `type`; nil if a rule keeps all of them back.
function leaders.oldest(type, heads)
    local first, first_us, first_id
    for place, lane, enqueued, id in string.gmatch(heads, "()(%S+) (%S+) (%S+)") do
        if filters.none or filters.admit(type, lane, id) then
            local enqueued_us = tonumber(enqueued)
            if not first or score.is_older(enqueued_us, id, first_us, first_id) then
                first, first_us, first_id = place, enqueued_us, id
            end
        end
    end
    return first
end

-- Looks at all `heads` of `type`. RETURNS a note; nil if a rule keeps all of them back.
function leaders.look(type, heads, points_of, settings)
    local slow, fast = { points = NONE, next = NONE, place = 0 }, { points = NONE, next = NONE, place = 0 }
    local until_us = filters.none and grows_evenly(settings) and math.huge or NEVER
    for place, lane, enqueued, id in string.gmatch(heads, "()(%S+) (%S+) (%S+)") do
        if filters.none or filters.admit(type, lane, id) then
            local enqueued_us = tonumber(enqueued)
            local points, is_fast = points_of(lane, clock.now_us - enqueued_us)
            local kind = is_fast and fast or slow
            if points > kind.points
                or (points == kind.points and score.is_older(enqueued_us, id, kind.enqueued_us, kind.id)) then
                kind.points, kind.next, kind.place = points, kind.points, place
                kind.enqueued_us, kind.id = enqueued_us, id
            elseif points > kind.next then
                kind.next = points
            end
            if enqueued_us > clock.now_us then -- the clock was set back: it gains nothing until then
                until_us = NEVER
            elseif is_fast then
                until_us = math.min(until_us, enqueued_us + settings.on_demand_age_cap_us)
            end
        end
    end
    if slow.place + fast.place == 0 then
        return nil
    end
    return struct.pack(NOTE, settings.revision, clock.now_us, until_us, slow.points, slow.next, slow.place, fast.points,
        fast.next, fast.place)
end

-- RETURNS the place of the head that goes first, and its points by now.
function leaders.first(note, heads, settings)
    local _, made_us, _, slow, _, slow_place, fast, _, fast_place = struct.unpack(NOTE, note)
    return first_of(heads, settings, made_us, slow, slow_place, fast, fast_place)
end

-- RETURNS the note of `heads` after `job` was taken and the next one of its lane stands there, by which they are longer
-- by `longer`; nil if it takes a look to know. Mostly the next one is the best of its kind again.
function leaders.after(note, heads, job, longer, points_of, settings)
    local revision, made_us, until_us, slow, next_slow, slow_place, fast, next_fast, fast_place =
        struct.unpack(NOTE, note)
    local place, lane = job.place, job.lane
    local next_lane, enqueued = lanes.at(heads, place)
    local age_us = next_lane == lane and clock.now_us - tonumber(enqueued) or -1
    if age_us < 0 then
        return nil
    end
    local points, is_fast = points_of(lane, age_us)
    local gained = (clock.now_us - made_us) * settings.age_weight
    slow, next_slow = slow + gained, next_slow + gained
    gained = gained + (clock.now_us - made_us) * settings.on_demand_age_weight
    fast, next_fast = fast + gained, next_fast + gained
    if is_fast and place == fast_place and points > next_fast then
        fast, slow_place = points, slow_place > place and slow_place + longer or slow_place
    elseif not is_fast and place == slow_place and points > next_slow then
        slow, fast_place = points, fast_place > place and fast_place + longer or fast_place
    else
        return nil
    end
    return struct.pack(NOTE, revision, clock.now_us, until_us, slow, next_slow, slow_place, fast, next_fast, fast_place)
end

-- Writes what is known of the `heads` of `type`; `note` is nil if that is nothing. `had_one`: whether it had a note.
function leaders.write(type, heads, note, had_one)
    if note and #heads > MANY then
        local _, _, until_us = struct.unpack(NOTE, note)
        if until_us ~= NEVER then
            redis.call("HSET", key.leaders, type, note)
            return
        end
    end
    if had_one then
        redis.call("HDEL", key.leaders, type)
    end
end
