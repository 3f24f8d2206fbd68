-- HGETEX hash EX | PX | EXAT | PXAT time | PERSIST FIELDS n field ..., for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, then as the command takes them.
-- Returns a list of values, nil for what is missing or expired.
--@include hash
local at = now()
local options, problem = deadline_options('hgetex', at)
if problem then
  return problem
end
local gone = options.at and is_past(options.at, at)
local schedules = options.at and not gone
problem = refuse(schedules)
if problem then
  return problem
end
local fields, present, taken = fields_argument(2), {}, {}
local values = live_values(fields, at)
for i, field in ipairs(fields) do
  if taken[field] then
    values[i] = false
  elseif values[i] then
    present[#present + 1] = field
    taken[field] = gone
  end
end
if #present == 0 then
  return schedules and refuse_due() or values
end
if schedules then
  problem = schedule(options.at)
  if problem then
    return problem
  end
  set_deadline(present, options.at)
  return values
end
-- From here on the parts that most calls do without.
do
  --@include hash
  if gone then
    remove(present)
  else
    clear_deadline(present)
  end
  tidy()
  return values
end
