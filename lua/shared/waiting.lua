--@library
-- What waits in an Ick until it has rested: the members that were added with a rest (debounce).
--   waiting: a sorted set: member -> when it is ripe, in ms of the server's clock
--   terms: a hash: member -> `latest score`: it is ripe then at the latest, in ms; of its scores the lowest
-- A member that stands in the producer set as well is ready: whatever meets it there drops it here.
--@include ick
--@include clock

-- The number of a score that is a text, nil for what is none.
local function number_of_score(text)
  local number = text == 'inf' and math.huge or text == '-inf' and -math.huge or tonumber(text)
  return number == number and number or nil
end

-- The lower of two scores, as it was written; either may be missing.
local function lower_of(a, b)
  if not a or not b then
    return a or b
  end
  return number_of_score(b) < number_of_score(a) and b or a
end

-- The latest time and the score of a member that waits. One whose terms cannot be read is ripe
-- when its moment comes, and then first in line.
local function terms_of(text)
  local latest, score = string.match(text or '', '^(%d+) (%S+)$')
  if not score or not number_of_score(score) then
    return nil, '0'
  end
  return tonumber(latest), score
end

local function drop_waiting(waiting, terms, members)
  redis.call('ZREM', waiting, unpack(members))
  redis.call('HDEL', terms, unpack(members))
end

-- Moves members that wait to the producer set; the lower score wins.
local function make_ready(pset, waiting, terms, members)
  local texts, list = redis.call('HMGET', terms, unpack(members)), {}
  for i, member in ipairs(members) do
    local _, score = terms_of(texts[i])
    list[2 * i - 1], list[2 * i] = score, member
  end
  redis.call('ZADD', pset, 'LT', unpack(list))
  drop_waiting(waiting, terms, members)
end

-- Moves ripe members to the producer set, at most so many, those first that have been ripe for longest.
-- Returns how many.
local function ripen(pset, waiting, terms, most)
  local at = string.format('%.0f', now())
  local members = redis.call('ZRANGEBYSCORE', waiting, '-inf', at, 'LIMIT', 0, most)
  if #members > 0 then
    make_ready(pset, waiting, terms, members)
  end
  return #members
end

-- Before the first n members of the producer set are reserved: moves ripe ones there, at most `piece`, and
-- ends the wait of those of the n that wait as well, or they would be reserved once more.
-- Returns whether more may be ripe.
local function wake(pset, waiting, terms, n, piece)
  local is_more = ripen(pset, waiting, terms, piece) == piece
  local members = redis.call('ZRANGE', pset, 0, math.min(n, piece) - 1)
  local both = {}
  if #members > 0 then
    for i, moment in ipairs(redis.call('ZMSCORE', waiting, unpack(members))) do
      if moment then
        both[#both + 1] = members[i]
      end
    end
  end
  if #both > 0 then
    make_ready(pset, waiting, terms, both)
  end
  return is_more
end

-- Lets members wait until nobody has added them for quiet ms, or at_most ms have passed since the first add.
-- What is ready in the producer set stays there, and so does what is ripe by now.
-- list: score ('' for the server's time in seconds), member, ...
-- Returns { new members, members whose score became lower }, or an error reply.
local function let_wait(version, pset, cset, waiting, terms, quiet, at_most, list)
  local count = count_waiting(waiting, terms)
  local problem = type(count) == 'table' and count
    or refuse_key('HLEN', terms, 'the terms of an Ick\'s waiting members')
    or refuse(version, pset, cset, true)
  if problem then
    return problem
  end
  if #list == 0 then
    return { 0, 0 }
  end
  local members, at = {}, now()
  local clock = server_time()
  local score_now = string.format('%.0f.%06d', clock[1], clock[2])
  for i = 2, #list, 2 do
    members[i / 2] = list[i]
  end
  local standing = redis.call('ZMSCORE', pset, unpack(members))
  local moments = redis.call('ZMSCORE', waiting, unpack(members))
  local texts = redis.call('HMGET', terms, unpack(members))
  -- A member may be given twice.
  local known, order = {}, {}
  local new, changed = 0, 0
  for i, member in ipairs(members) do
    local score = list[2 * i - 1] == '' and score_now or list[2 * i - 1]
    local one = known[member]
    if not one then
      one = { ready = standing[i], score = standing[i] }
      if moments[i] then
        local latest, waited = terms_of(texts[i])
        one.waits, one.latest = true, latest
        one.score = lower_of(one.score, waited)
        one.ready = one.ready or tonumber(moments[i]) <= at and waited
      end
      known[member], order[#order + 1] = one, member
    end
    if not one.score then
      new = new + 1
    elseif number_of_score(score) < number_of_score(one.score) then
      changed = changed + 1
    end
    one.score = lower_of(one.score, score)
    one.latest = math.min(one.latest or math.huge, at + at_most)
  end
  local ready, resting, entries, over = {}, {}, {}, {}
  for _, member in ipairs(order) do
    local one = known[member]
    if one.ready then
      ready[#ready + 1] = one.score
      ready[#ready + 1] = member
      over[#over + 1] = one.waits and member or nil
    else
      resting[#resting + 1] = string.format('%.0f', math.min(at + quiet, one.latest))
      resting[#resting + 1] = member
      entries[#entries + 1] = member
      entries[#entries + 1] = string.format('%.0f %s', one.latest, one.score)
    end
  end
  -- First what needs memory: a full server refuses the first of them.
  if #ready > 0 then
    redis.call('ZADD', pset, 'LT', unpack(ready))
  end
  if #resting > 0 then
    redis.call('ZADD', waiting, unpack(resting))
    redis.call('HSET', terms, unpack(entries))
  end
  if #over > 0 then
    drop_waiting(waiting, terms, over)
  end
  return { new, changed }
end

-- Takes over what waited elsewhere; doing it twice changes nothing. Of two entries of a member the lower
-- score and the earlier end of its wait hold.
-- list: member, moment, terms, ...
local function wait_on(waiting, terms, list)
  for i = 1, #list, 3 do
    local member, moment = list[i], tonumber(list[i + 1])
    local latest, score = terms_of(list[i + 2])
    local own = redis.call('ZSCORE', waiting, member)
    latest = latest or moment
    if own then
      local own_latest, own_score = terms_of(redis.call('HGET', terms, member))
      latest = math.min(latest, own_latest or latest)
      score = lower_of(own_score, score)
      moment = math.max(moment, tonumber(own))
    end
    redis.call('ZADD', waiting, string.format('%.0f', math.min(moment, latest)), member)
    redis.call('HSET', terms, member, string.format('%.0f %s', latest, score))
  end
end

-- Reads what waits, the next to be ripe first: member, moment, terms, ..., at most so many.
local function waiting_rows(waiting, terms, most)
  local list, members, rows = redis.call('ZRANGE', waiting, 0, most - 1, 'WITHSCORES'), {}, {}
  for i = 1, #list, 2 do
    members[#members + 1] = list[i]
  end
  if #members == 0 then
    return rows
  end
  local texts = redis.call('HMGET', terms, unpack(members))
  for i, member in ipairs(members) do
    rows[3 * i - 2], rows[3 * i - 1], rows[3 * i] = member, list[2 * i], texts[i] or ''
  end
  return rows
end

-- Moves what waits to other keys of the slot: all where nothing stands there, else at most so many.
local function set_waiting_aside(waiting, terms, to, to_terms, most)
  if redis.call('EXISTS', waiting) == 0 then
    return
  end
  if redis.call('EXISTS', to, to_terms) == 0 then
    redis.call('RENAME', waiting, to)
    if redis.call('EXISTS', terms) == 1 then
      redis.call('RENAME', terms, to_terms)
    end
    return
  end
  local rows, members = waiting_rows(waiting, terms, most), {}
  for i = 1, #rows, 3 do
    members[#members + 1] = rows[i]
  end
  wait_on(to, to_terms, rows)
  drop_waiting(waiting, terms, members)
end
