--@library
-- The functions of the scripts on durable keys.
--@include clock
--@include layout
--@include values

-- The part that all scripts on durable keys share: it looks at a key.
--   key: the user's own, a string without a time to live of the server's
--   due: the due index of its index shard, a sorted set: key -> deadline in ms since the epoch

-- Returns the deadline that the due index has for a key, or nil, and an error reply or nil.
local function indexed_deadline(key, due)
  local deadline = redis.pcall('ZSCORE', due, key)
  if type(deadline) == 'table' then
    return nil, refusal(deadline, due, 'does not hold a due index')
  end
  return deadline and tonumber(deadline)
end

-- The one rule of expiry: a key is gone from the millisecond of its deadline on.
-- Returns the type of what a reader finds at a key ('none' from its deadline on), its deadline or
-- nil, and an error reply or nil. Where somebody else has set a time to live, the server will delete
-- the key by itself: the earlier of both is its deadline.
local function look(key, due, at)
  local kind = redis.call('TYPE', key).ok
  local deadline, problem = indexed_deadline(key, due)
  if problem then
    return nil, nil, problem
  end
  if kind == 'none' then
    return kind
  end
  if kind ~= 'string' then
    -- Somebody else's: an entry in the due index is that of a durable key that stood here before.
    deadline = nil
  end
  local left = redis.call('PTTL', key)
  if left >= 0 then
    deadline = math.min(deadline or at + left, at + left)
  end
  if kind == 'string' and deadline and deadline <= at then
    return 'none'
  end
  return kind, deadline
end

-- live_value(): what a reader may see of a durable key.

-- Returns the value, false from the deadline on, or the error reply for another type; and the error
-- reply for a foreign due index, or nil. Two commands, and a third if there is a deadline.
local function live_value(key, due)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' then
    return value
  end
  local deadline, problem = indexed_deadline(key, due)
  if problem then
    return nil, problem
  end
  if deadline and deadline <= now() then
    return false
  end
  return value
end

-- The part that scripts share that change durable keys.
--   mark: the layout mark of the key's index shard, a string
--   expected: the mark that the caller was written for

-- Refuses a foreign layout and wrong types before anything is written. Returns an error reply or nil,
-- the type of what stands at the key ('none' or 'string'), its deadline or nil, and the mark found.
local function refuse(key, due, mark, expected, at)
  local found = redis.pcall('GET', mark)
  local problem = refuse_mark(mark, found, expected, 'a layout mark')
  if problem then
    return problem
  end
  local kind, deadline
  kind, deadline, problem = look(key, due, at)
  if problem then
    return problem
  end
  if kind ~= 'none' and kind ~= 'string' then
    return redis.error_reply(
      'WRONGTYPE Operation against a key holding the wrong kind of value'
    )
  end
  return nil, kind, deadline, found
end

-- Writes a key's deadline into the due index. The first write of a script that sets one, so that a
-- full server refuses it before anything is changed. ...: more deadlines, as text, and their keys.
-- Returns an error reply or nil.
local function schedule(key, due, mark, expected, found, deadline, ...)
  if not found then
    local reply = redis.pcall('SET', mark, expected)
    if reply.err then
      return reply
    end
  end
  local reply = redis.pcall('ZADD', due, string.format('%.0f', deadline), key, ...)
  return type(reply) == 'table' and reply or nil
end

local function remove(key, due)
  redis.call('DEL', key)
  redis.call('ZREM', due, key)
end

-- set_deadline(): another deadline for a durable key.

-- Gives a key that stands another deadline, or deletes it if that has passed. Returns an error reply or
-- nil.
local function set_deadline(key, due, mark, expected, found, deadline, at)
  if deadline <= at then
    remove(key, due)
    return nil
  end
  local problem = schedule(key, due, mark, expected, found, deadline)
  if not problem then
    -- A time to live of the server's, which somebody else has set.
    redis.call('PERSIST', key)
  end
  return problem
end

-- delete_all(): DEL and UNLINK of durable keys.

-- keys: key, due index, mark, and so on in threes. Looks at all of them before any is deleted.
-- Returns how many were live, or an error reply.
local function delete_all(keys, expected, command)
  local live, at = {}, now()
  for i = 1, #keys, 3 do
    local problem, kind = refuse(keys[i], keys[i + 1], keys[i + 2], expected, at)
    if problem then
      return problem
    end
    live[keys[i]] = kind == 'string' or nil
  end
  local count = 0
  for i = 1, #keys, 3 do
    redis.call(command, keys[i])
    redis.call('ZREM', keys[i + 1], keys[i])
    count = count + (live[keys[i]] and 1 or 0)
    live[keys[i]] = nil
  end
  return count
end

-- The part that scripts on leases share.

-- Tokens are greater: the time in microseconds has had 16 digits since 2001.
local BELOW_ALL = '999999999999999'

-- Looks whether a durable key is the lease of a token. A value with fewer digits or more is the
-- user's own, even if somebody takes it for a token. Returns an error reply, or 0 if it is not; or nil,
-- and the mark found.
local function refuse_unheld(key, due, mark, expected, token, at)
  local problem, kind, _, found = refuse(key, due, mark, expected, at)
  if problem then
    return problem
  end
  local most = at < 1e13 and 16 or 17
  local is_token = #token <= most and string.match(token, '^%d+$') and is_greater(token, BELOW_ALL)
  if kind == 'none' or not is_token or redis.call('GET', key) ~= token then
    return 0
  end
  return nil, found
end

-- The options of SET and GETEX on durable keys, read and refused as Redis 7 does.
local UNITS_MS = { EX = 1000, PX = 1, EXAT = 1000, PXAT = 1 }
local LAST_DEADLINE = 9007199254740991 -- the scores of a sorted set are exact up to here

local function deadline_error(command)
  return redis.error_reply("ERR invalid expire time in '" .. command .. "' command")
end

-- Reads the arguments from index first on. words: the words that may stand alone; words of one kind exclude
-- each other, and so does the kind 'time' with EX, PX, EXAT and PXAT.
-- Returns { [word] = true, time = EX, PX, EXAT, PXAT or nil, amount = text or nil } or an error reply.
local function read_options(args, first, words)
  local options, kinds, i = {}, {}, first
  while i <= #args do
    local word = string.upper(args[i])
    local kind = UNITS_MS[word] and args[i + 1] and 'time' or words[word]
    if not kind or kinds[kind] and kinds[kind] ~= word or kinds[kind] and kind == 'time' then
      return nil, redis.error_reply('ERR syntax error')
    end
    kinds[kind], options[word] = word, true
    if UNITS_MS[word] then
      options.time, options.amount = word, args[i + 1]
      i = i + 1
    end
    i = i + 1
  end
  return options
end

-- Returns the deadline in ms that options ask for, or nil, and an error reply or nil.
local function wanted_deadline(options, command, at)
  if not options.time then
    return nil
  end
  if not is_integer(options.amount) then
    return nil, redis.error_reply('ERR value is not an integer or out of range')
  end
  local deadline = tonumber(options.amount) * UNITS_MS[options.time]
  if deadline > 0 and (options.time == 'EX' or options.time == 'PX') then
    deadline = deadline + at
  end
  if deadline <= 0 or deadline > LAST_DEADLINE then
    return nil, deadline_error(command)
  end
  return deadline
end
