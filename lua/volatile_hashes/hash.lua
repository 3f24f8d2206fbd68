--@library
-- The functions of the scripts on one volatile hash.
--@include clock
--@include layout
--@include values
--@include bounded

--   hash: the user's hash: field -> value
--   deadlines: its deadlines, a sorted set: field -> milliseconds since the epoch; no member for a field
--     without a deadline
--   due: the due index of the hash's index shard, a sorted set: key of the hash -> the earliest moment
--     at which it may have garbage (never later than its earliest deadline)
--   mark: the layout mark of that index shard, a string

-- The one rule of expiry: a field is gone from the millisecond of its deadline on.
local function is_past(deadline, at)
  return deadline and tonumber(deadline) <= at
end

-- Parts of the arguments as lists.

-- The arguments from index first on, as a list.
local function arguments(args, first)
  local list = {}
  for i = first, #args do
    list[#list + 1] = args[i]
  end
  return list
end

-- The arguments behind FIELDS and their number.
local function fields_argument(args, first)
  for i = first, #args do
    if string.upper(args[i]) == 'FIELDS' then
      return arguments(args, i + 2)
    end
  end
  return {}
end

-- fields_of(): the fields of a list field, value, field, value, ...
local function fields_of(list)
  local fields = {}
  for i = 1, #list, 2 do
    fields[(i + 1) / 2] = list[i]
  end
  return fields
end

-- in_runs(): commands on more fields than one call of unpack() can pass.

-- Calls visit(first, last) for runs of at most 4,000 indexes, because unpack() has its limits.
local function in_runs(first, last, visit)
  while first <= last do
    visit(first, math.min(first + 3999, last))
    first = first + 4000
  end
end

-- deadlines_of(): when fields of a volatile hash end.

-- The deadlines of fields, in order: strings, or false where there is none.
local function deadlines_of(deadlines, fields)
  local found = {}
  in_runs(1, #fields, function(first, last)
    local run = redis.call('ZMSCORE', deadlines, unpack(fields, first, last))
    for i = 1, #run do
      found[first + i - 1] = run[i]
    end
  end)
  return found
end

-- live_values(fields): what readers may see of some fields.

-- Returns the values of fields in order, false for what is missing or has expired; or an error reply.
-- Complexity: one command beside HMGET while nothing of the hash has expired, else two.
local function live_values(hash, deadlines, fields, at)
  local values = redis.pcall('HMGET', hash, unpack(fields, 1, math.min(#fields, 4000)))
  if values.err then
    return values
  end
  in_runs(4001, #fields, function(first, last)
    for _, value in ipairs(redis.call('HMGET', hash, unpack(fields, first, last))) do
      values[#values + 1] = value
    end
  end)
  -- Counting is far cheaper than asking for each field's deadline, and the answer is nearly always 0.
  if redis.call('ZCOUNT', deadlines, '-inf', string.format('%.0f', at)) > 0 then
    in_runs(1, #fields, function(first, last)
      for i, deadline in ipairs(redis.call('ZMSCORE', deadlines, unpack(fields, first, last))) do
        if is_past(deadline, at) then
          values[first + i - 1] = false
        end
      end
    end)
  end
  return values
end

-- The beginning of every script that may change a volatile hash.

local function refuse_due(due)
  local reply = redis.pcall('ZCARD', due)
  return type(reply) == 'table' and refusal(reply, due, 'does not hold a due index') or nil
end

-- Refuses a foreign layout and wrong types before anything is written, and drops the deadlines of a
-- hash that is gone. Returns an error reply, or nil when the script may go on.
-- expected: the mark that the caller was written for, or some; schedules: the script's next write is
-- schedule(), which refuses a foreign due index by itself.
local function refuse(hash, deadlines, due, mark, expected, schedules)
  local found = redis.pcall('GET', mark)
  local problem = refuse_mark(mark, found, expected, 'a layout mark')
  if problem then
    return problem
  end
  local size = redis.pcall('HLEN', hash)
  if type(size) == 'table' then
    return size
  end
  local held = redis.pcall('ZCARD', deadlines)
  if type(held) == 'table' then
    return refusal(held, deadlines, 'does not hold the deadlines of a volatile hash')
  end
  local is_orphaned = size == 0 and held > 0
  if not (schedules and found) or is_orphaned then
    problem = refuse_due(due)
    if problem then
      return problem
    end
  end
  if not found then
    local reply = redis.pcall('SET', mark, first_mark(expected))
    if reply.err then
      return reply
    end
  end
  if is_orphaned then
    redis.call('UNLINK', deadlines)
  elseif size > 0 and held >= size and redis.call('PTTL', hash) >= 0 then
    -- A hash without a live field is gone: what is written now must not inherit its time to live.
    local past = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', now()))
    local live = size
    for i = 1, #past >= size and #past or 0 do
      live = live - redis.call('HEXISTS', hash, past[i])
    end
    if live == 0 then
      redis.call('UNLINK', hash, deadlines)
    end
  end
end

-- schedule(): an entry in the due index.

-- Makes the due index find this hash at that moment or before. The first write of a script that sets
-- deadlines, so that a full server refuses it before anything is changed. Returns an error or nil.
local function schedule(due, hash, at)
  local reply = redis.pcall('ZADD', due, 'LT', string.format('%.0f', at), hash)
  if type(reply) == 'table' then
    return refusal(reply, due, 'does not hold a due index')
  end
end

-- The part that scripts share that look at a whole volatile hash.

-- All fields whose deadline has passed, as a set, and their number. Complexity: O(log n + m).
local function past_fields(deadlines, at)
  local list = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', at))
  local set = {}
  for _, field in ipairs(list) do
    set[field] = true
  end
  return set, #list
end

-- How many fields of the hash are live. Garbage that a foreign client has deleted from the hash
-- alone is not counted twice. In runs, because there may be a million of them.
local function live_count(hash, deadlines)
  local size = redis.call('HLEN', hash)
  local past = redis.call('ZCOUNT', deadlines, '-inf', string.format('%.0f', now()))
  for first = 0, size > 0 and past - 1 or -1, 4000 do
    local last = math.min(first + 3999, past - 1)
    for _, field in ipairs(redis.call('ZRANGE', deadlines, first, last)) do
      size = size - redis.call('HEXISTS', hash, field)
    end
  end
  return size
end

-- Whether any field is live; without a look at them where more fields stand than have expired.
local function has_live(hash, deadlines)
  local past = redis.call('ZCOUNT', deadlines, '-inf', string.format('%.0f', now()))
  return redis.call('HLEN', hash) > past or live_count(hash, deadlines) > 0
end

-- The server's own time to live of a whole hash.

-- The milliseconds since the epoch by which the server judges it: a test's clock does not count.
local function server_ms()
  return now() - CLOCK_SHIFT_MS
end

-- EXPIRETIME hash or PEXPIRETIME hash, by PTTL where the server has no such command, as Redis 6.2,
-- or refuses it to the user.
local function end_of_hash(hash, command)
  local reply = redis.pcall(command, hash)
  if not is_error(reply) then
    return reply
  end
  local at, left
  repeat
    -- Both must be of one millisecond.
    at, left = server_ms(), redis.call('PTTL', hash)
  until left < 0 or server_ms() == at
  if left < 0 or command == 'PEXPIRETIME' then
    return left < 0 and left or at + left
  end
  return math.floor((at + left + 500) / 1000)
end

-- The part that scripts share that change fields of a volatile hash.

local function clear_deadline(deadlines, fields)
  call_in_runs('ZREM', deadlines, fields, 1)
end

-- Deletes fields and their deadlines; returns how many fields there were.
local function remove(hash, deadlines, fields)
  local removed = call_in_runs('HDEL', hash, fields, 1)
  clear_deadline(deadlines, fields)
  return removed
end

-- Forgets a hash that has no deadlines left.
local function tidy(hash, deadlines, due)
  if redis.call('EXISTS', deadlines) == 0 then
    redis.call('ZREM', due, hash)
  end
end

-- Deletes those of the fields that have expired, so that what follows meets only live ones. Returns
-- the fields that still have a deadline.
local function drop_past(hash, deadlines, fields)
  local lasting, gone, at = {}, {}, nil
  for i, deadline in pairs(deadlines_of(deadlines, fields)) do
    if deadline then
      at = at or now()
      if is_past(deadline, at) then
        gone[#gone + 1] = fields[i]
      else
        lasting[#lasting + 1] = fields[i]
      end
    end
  end
  if #gone > 0 then
    remove(hash, deadlines, gone)
  end
  return lasting
end

-- Setting fields and deadlines, behind the guard.

local function set_deadline(deadlines, fields, at)
  local score, members = string.format('%.0f', at), {}
  for i, field in ipairs(fields) do
    members[#members + 1] = score
    members[#members + 1] = field
    if #members == 4000 or i == #fields then
      redis.call('ZADD', deadlines, unpack(members))
      members = {}
    end
  end
end

-- Sets the fields of a list field, value, field, value, ...; returns how many are new.
local function set_values(hash, list)
  return call_in_runs('HSET', hash, list, 1)
end

-- Deadlines as Redis 8 takes them and refuses them.
-- In ms, Redis' own limit; a test holds server_faults.py to the same.
local LAST_DEADLINE = 70368744177663

-- Turns an amount and its unit into milliseconds since the epoch.
-- Returns the deadline, or nil and an error reply.
local function deadline_from(amount, unit_ms, is_relative, command, at)
  local number = tonumber(amount)
  if not is_integer(amount) then
    return nil, redis.error_reply('ERR value is not an integer or out of range')
  end
  if number < 0 then
    return nil, redis.error_reply('ERR invalid expire time, must be >= 0')
  end
  local deadline = number * unit_ms
  if is_relative then
    deadline = deadline + at
  end
  if deadline > LAST_DEADLINE then
    return nil, redis.error_reply("ERR invalid expire time in '" .. command .. "' command")
  end
  return deadline
end

-- Reads the options between the second argument and FIELDS.
-- Returns { at = deadline or nil, flags = set of the other words, first = index of the first field },
-- or nil and an error reply.
local function deadline_options(args, command, at)
  local options = { flags = {} }
  local i = 2
  while i <= #args and string.upper(args[i]) ~= 'FIELDS' do
    local word = string.upper(args[i])
    local is_relative = word == 'EX' or word == 'PX'
    if is_relative or word == 'EXAT' or word == 'PXAT' then
      local unit_ms = (word == 'EX' or word == 'EXAT') and 1000 or 1
      local deadline, problem = deadline_from(args[i + 1], unit_ms, is_relative, command, at)
      if not deadline then
        return nil, problem
      end
      options.at = deadline
      i = i + 2
    else
      options.flags[word] = true
      i = i + 1
    end
  end
  options.first = i + 2
  return options
end
