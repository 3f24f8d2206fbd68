-- What scripts that change fields of a volatile hash share.
--@include guard
--@include deadlines_of
--@include call_in_runs

local function clear_deadline(fields)
  call_in_runs('ZREM', deadlines, fields, 1)
end

-- Deletes fields and their deadlines; returns how many fields there were.
local function remove(fields)
  local removed = call_in_runs('HDEL', hash, fields, 1)
  clear_deadline(fields)
  return removed
end

-- Forgets a hash that has no deadlines left.
local function tidy()
  if redis.call('EXISTS', deadlines) == 0 then
    redis.call('ZREM', due, hash)
  end
end

-- Deletes those of the fields that have expired, so that what follows meets only live ones. Returns
-- the fields that still have a deadline.
local function drop_past(fields)
  local lasting, gone, at = {}, {}, nil
  for i, deadline in pairs(deadlines_of(fields)) do
    if deadline then
      at = at or now()
      if is_past(deadline, at) then
        gone[#gone + 1] = fields[i]
      else
        lasting[#lasting + 1] = fields[i]
      end
    end
  end
  if #gone > 0 then
    remove(gone)
  end
  return lasting
end
