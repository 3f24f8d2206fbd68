-- HSETEX hash [FNX | FXX] [EX | PX | EXAT | PXAT time | KEEPTTL] FIELDS n field value ...
-- KEYS: hash, deadlines, due, mark. ARGV: mark, then the arguments in the command's own order.
-- Returns 1, or 0 when FNX or FXX is not met and nothing was changed.
--@include clock
local at = now()
-- The usual call, EX or PX and some fields, as one run of commands: a server makes each function of a
-- script anew at each call. An unusual call has changed nothing here, and is dealt with below.
local unit_ms = ARGV[2] == 'EX' and 1000 or ARGV[2] == 'PX' and 1
local is_short = unit_ms and #ARGV[3] < 10 and #ARGV <= 4000 and ARGV[4] == 'FIELDS'
if is_short and string.find(ARGV[3], '^[1-9]%d*$') then
  local size, held = redis.pcall('HLEN', KEYS[1]), redis.pcall('ZCARD', KEYS[2])
  local is_whole = type(size) == 'number' and type(held) == 'number' and (size > 0 or held == 0)
  -- Where every field may be garbage, the hash may be gone, and a time to live of its own with it.
  is_whole = is_whole and (size > held or redis.call('PTTL', KEYS[1]) < 0)
  if is_whole and redis.pcall('GET', KEYS[4]) == ARGV[1] then
    local score, members = string.format('%.0f', at + ARGV[3] * unit_ms), {}
    if type(redis.pcall('ZADD', KEYS[3], 'LT', score, KEYS[1])) == 'number' then
      for i = 6, #ARGV, 2 do
        members[i - 5], members[i - 4] = score, ARGV[i]
      end
      redis.call('ZADD', KEYS[2], unpack(members))
      redis.call('HSET', KEYS[1], unpack(ARGV, 6))
      return 1
    end
  end
end
do
  --@include hash
  local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
  local options, problem = deadline_options(ARGV, 'hsetex', at)
  if problem then
    return problem
  end
  problem = refuse(hash, deadlines, due, mark, ARGV[1])
  if problem then
    return problem
  end
  local list, flags = arguments(ARGV, options.first), options.flags
  local fields = fields_of(list)
  if flags.FNX or flags.FXX then
    drop_past(hash, deadlines, fields)
    for _, field in ipairs(fields) do
      local exists = redis.call('HEXISTS', hash, field) == 1
      if (exists and flags.FNX) or (not exists and flags.FXX) then
        return 0
      end
    end
  end
  if options.at then
    if is_past(options.at, at) then
      remove(hash, deadlines, fields)
      tidy(hash, deadlines, due)
      return 1
    end
    problem = schedule(due, hash, options.at)
    if problem then
      return problem
    end
    set_deadline(deadlines, fields, options.at)
  elseif flags.KEEPTTL then
    drop_past(hash, deadlines, fields)
  end
  set_values(hash, list)
  if not options.at and not flags.KEEPTTL then
    clear_deadline(deadlines, fields)
    tidy(hash, deadlines, due)
  end
  return 1
end
