-- The options of SET and GETEX on durable keys, read and refused as Redis 7 does.
--@include integer
local UNITS_MS = { EX = 1000, PX = 1, EXAT = 1000, PXAT = 1 }
local LAST_DEADLINE = 9007199254740991 -- the scores of a sorted set are exact up to here

local function deadline_error(command)
  return redis.error_reply("ERR invalid expire time in '" .. command .. "' command")
end

-- Reads ARGV from index first on. words: the words that may stand alone; words of one kind exclude
-- each other, and so does the kind 'time' with EX, PX, EXAT and PXAT.
-- Returns { [word] = true, time = EX, PX, EXAT, PXAT or nil, amount = text or nil } or an error reply.
local function read_options(first, words)
  local options, kinds, i = {}, {}, first
  while i <= #ARGV do
    local word = string.upper(ARGV[i])
    local kind = UNITS_MS[word] and ARGV[i + 1] and 'time' or words[word]
    if not kind or kinds[kind] and kinds[kind] ~= word or kinds[kind] and kind == 'time' then
      return nil, redis.error_reply('ERR syntax error')
    end
    kinds[kind], options[word] = word, true
    if UNITS_MS[word] then
      options.time, options.amount = word, ARGV[i + 1]
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
