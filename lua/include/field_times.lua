-- HTTL and its three siblings.
--   KEYS[3] the layout mark; ARGV[1] the mark that the caller was written for: after a migration the
--   deadlines stand elsewhere, and a caller who does not know would see none
-- Returns per field: -2 no such field, -1 no deadline, else the time in units of unit_ms, rounded up.
--@include deadlines_of
--@include arguments
--@include refuse_mark
local function field_times(unit_ms, is_relative)
  local problem = refuse_mark(KEYS[3], redis.pcall('GET', KEYS[3]), ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
  local fields = fields_argument(2)
  local size = redis.pcall('HLEN', hash)
  if type(size) == 'table' then
    return size
  end
  local at, found, replies = now(), deadlines_of(fields), {}
  for i, field in ipairs(fields) do
    local deadline = found[i] and tonumber(found[i])
    if is_past(deadline, at) or redis.call('HEXISTS', hash, field) == 0 then
      replies[i] = -2
    elseif not deadline then
      replies[i] = -1
    else
      local time = is_relative and deadline - at or deadline
      replies[i] = math.ceil(time / unit_ms)
    end
  end
  return replies
end
