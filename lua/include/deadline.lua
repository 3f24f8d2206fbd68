-- Deadlines as Redis 8 takes them and refuses them.
--@include now
local LAST_DEADLINE = 70368744177663 -- 2^46 - 1 ms, Redis' own limit

-- Turns an amount and its unit into milliseconds since the epoch.
-- Returns the deadline, or nil and an error reply.
local function deadline_from(amount, unit_ms, is_relative, command, at)
  local number = tonumber(amount)
  if not string.match(amount, '^-?%d+$') or math.abs(number) > 9.2233720368547e18 then
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

local UNITS = { EX = { 1000, true }, PX = { 1, true }, EXAT = { 1000, false }, PXAT = { 1, false } }

-- Reads the options between ARGV[2] and FIELDS.
-- Returns { at = deadline or nil, flags = set of the other words }, or nil and an error reply.
local function deadline_options(command, at)
  local options = { flags = {} }
  local i = 2
  while i <= #ARGV and string.upper(ARGV[i]) ~= 'FIELDS' do
    local word = string.upper(ARGV[i])
    local unit = UNITS[word]
    if unit then
      local deadline, problem = deadline_from(ARGV[i + 1], unit[1], unit[2], command, at)
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
  return options
end
