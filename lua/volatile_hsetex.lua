-- HSETEX hash [FNX | FXX] [EX | PX | EXAT | PXAT time | KEEPTTL] FIELDS n field value ...
-- KEYS: hash, deadlines, due, mark. ARGV: mark, then as the command takes them.
-- Returns 1, or 0 when FNX or FXX is not met and nothing was changed.
--@include guard
--@include deadline
--@include schedule
local at = now()
local options, problem = deadline_options('hsetex', at)
if problem then
  return problem
end
local flags, first = options.flags, options.first
local is_usual = options.at and not next(flags) and not is_past(options.at, at) and #ARGV <= 4000
problem = refuse(is_usual) or (is_usual and schedule(options.at))
if problem then
  return problem
end
if is_usual then
  -- Without the functions of the other cases, which a server would make anew at each call.
  local score, members = string.format('%.0f', options.at), {}
  for i = first, #ARGV, 2 do
    members[i - first + 1], members[i - first + 2] = score, ARGV[i]
  end
  redis.call('ZADD', deadlines, unpack(members))
  redis.call('HSET', hash, unpack(ARGV, first))
  return 1
end
--@include volatile_write
local list = arguments(first)
local fields = fields_of(list)
if flags.FNX or flags.FXX then
  drop_past(fields)
  for _, field in ipairs(fields) do
    local exists = redis.call('HEXISTS', hash, field) == 1
    if (exists and flags.FNX) or (not exists and flags.FXX) then
      return 0
    end
  end
end
if options.at then
  if is_past(options.at, at) then
    remove(fields)
    tidy()
    return 1
  end
  problem = schedule(options.at)
  if problem then
    return problem
  end
  set_deadline(fields, options.at)
elseif flags.KEEPTTL then
  drop_past(fields)
end
set_values(list)
if not options.at and not flags.KEEPTTL then
  clear_deadline(fields)
  tidy()
end
return 1
