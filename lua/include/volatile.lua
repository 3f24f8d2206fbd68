-- What every script on a volatile hash shares.
--   KEYS[1] the user's hash: field -> value
--   KEYS[2] its deadlines, a sorted set: field -> milliseconds since the epoch
-- Fields without a deadline have no member in KEYS[2].
--@include now
local hash, deadlines = KEYS[1], KEYS[2]

-- The one rule of expiry: a field is gone from the millisecond of its deadline on.
local function is_past(deadline, at)
  return deadline and tonumber(deadline) <= at
end

-- Calls visit(first, last) for runs of at most 4,000 indexes, because unpack() has its limits.
local function in_runs(first, last, visit)
  while first <= last do
    visit(first, math.min(first + 3999, last))
    first = first + 4000
  end
end

-- The deadlines of fields, in order: strings, or false where there is none.
local function deadlines_of(fields)
  local found = {}
  in_runs(1, #fields, function(first, last)
    local run = redis.call('ZMSCORE', deadlines, unpack(fields, first, last))
    for i = 1, #run do
      found[first + i - 1] = run[i]
    end
  end)
  return found
end

-- All fields whose deadline has passed, as a set, and their number. Complexity: O(log n + m).
local function past_fields(at)
  local list = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', at))
  local set = {}
  for _, field in ipairs(list) do
    set[field] = true
  end
  return set, #list
end

-- How many fields of the hash are live. Garbage that a foreign client has deleted from the hash
-- alone is not counted twice.
local function live_count()
  local size = redis.call('HLEN', hash)
  if size == 0 then
    return 0
  end
  for field in pairs((past_fields(now()))) do
    size = size - redis.call('HEXISTS', hash, field)
  end
  return size
end

-- The arguments from index first on, as a list.
local function arguments(first)
  local list = {}
  for i = first, #ARGV do
    list[#list + 1] = ARGV[i]
  end
  return list
end

-- The arguments behind FIELDS and their number.
local function fields_argument(first)
  for i = first, #ARGV do
    if string.upper(ARGV[i]) == 'FIELDS' then
      return arguments(i + 2)
    end
  end
  return {}
end
