-- HEXPIRE hash amount [NX | XX | GT | LT] FIELDS n field [field ...], and its siblings, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2] the command's name in lower case
--   ARGV[3] the ms of its unit
--   ARGV[4] 1 if the amount is from now, else 0
--   ARGV[5] the amount
--   ARGV[6..] a condition, or none; FIELDS, n, fields
-- Returns per field: -2 no such field, 0 condition not met, 1 set, 2 deleted (time already past).
--@include hash
--@include conditions
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local at = now()
local deadline, problem = deadline_from(ARGV[5], ARGV[3], ARGV[4] == '1', ARGV[2], at)
if not deadline then
  return problem
end
problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
local is = { [string.upper(ARGV[6])] = true }
local fields = fields_argument(ARGV, 6)
drop_past(hash, deadlines, fields)
local current = deadlines_of(deadlines, fields)
local known, replies, chosen = {}, {}, {}
for i, field in ipairs(fields) do
  if known[field] == nil then
    local exists = redis.call('HEXISTS', hash, field) == 1
    known[field] = { exists = exists, deadline = current[i] and tonumber(current[i]) }
  end
  local state = known[field]
  if not state.exists then
    replies[i] = -2
  elseif not is_met(is, state.deadline, deadline) then
    replies[i] = 0
  elseif is_past(deadline, at) then
    replies[i] = 2
    state.exists = false
    chosen[#chosen + 1] = field
  else
    replies[i] = 1
    state.deadline = deadline
    chosen[#chosen + 1] = field
  end
end
if #chosen > 0 then
  if is_past(deadline, at) then
    remove(hash, deadlines, chosen)
    tidy(hash, deadlines, due)
  else
    problem = schedule(due, hash, deadline)
    if problem then
      return problem
    end
    set_deadline(deadlines, chosen, deadline)
  end
end
return replies
