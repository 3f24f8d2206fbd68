-- Deadlines as Redis 8 takes them and refuses them.
--@include now
--@include integer
local LAST_DEADLINE = 70368744177663 -- 2^46 - 1 ms, Redis' own limit

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

-- Reads the options between ARGV[2] and FIELDS.
-- Returns { at = deadline or nil, flags = set of the other words, first = index of the first field },
-- or nil and an error reply.
local function deadline_options(command, at)
  local options = { flags = {} }
  local i = 2
  while i <= #ARGV and string.upper(ARGV[i]) ~= 'FIELDS' do
    local word = string.upper(ARGV[i])
    local is_relative = word == 'EX' or word == 'PX'
    if is_relative or word == 'EXAT' or word == 'PXAT' then
      local unit_ms = (word == 'EX' or word == 'EXAT') and 1000 or 1
      local deadline, problem = deadline_from(ARGV[i + 1], unit_ms, is_relative, command, at)
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
