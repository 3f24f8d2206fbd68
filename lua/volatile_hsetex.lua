-- HSETEX hash [FNX | FXX] [EX | PX | EXAT | PXAT time | KEEPTTL] FIELDS n field value ...
-- KEYS: hash, deadlines, due, mark. ARGV: mark, then as the command takes them.
-- Returns 1, or 0 when FNX or FXX is not met and nothing was changed.
--@include guard
--@include deadline
--@include arguments
--@include set_fields
local at = now()
local options, problem = deadline_options('hsetex', at)
if problem then
  return problem
end
local flags, list = options.flags, fields_argument(2)
local fields = fields_of(list)
local is_plain = options.at and not next(flags) and not is_past(options.at, at)
problem = refuse(is_plain) or (is_plain and schedule(options.at))
if problem then
  return problem
end
if is_plain then
  set_deadline(fields, options.at)
  set_values(list)
  return 1
end
-- From here on the parts that most calls do without.
--@include volatile_write
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
