-- live_values(fields): what readers may see of some fields.
--@include one_hash
--@include runs

-- Returns the values of fields in order, false for what is missing or has expired; or an error reply.
-- Complexity: one command beside HMGET while nothing of the hash has expired, else two.
local function live_values(fields, at)
  local values = redis.pcall('HMGET', hash, unpack(fields, 1, math.min(#fields, 4000)))
  if values.err then
    return values
  end
  in_runs(4001, #fields, function(first, last)
    for _, value in ipairs(redis.call('HMGET', hash, unpack(fields, first, last))) do
      values[#values + 1] = value
    end
  end)
  -- Counting is far cheaper than asking for each field's deadline, and the answer is nearly always 0.
  if redis.call('ZCOUNT', deadlines, '-inf', string.format('%.0f', at)) > 0 then
    in_runs(1, #fields, function(first, last)
      for i, deadline in ipairs(redis.call('ZMSCORE', deadlines, unpack(fields, first, last))) do
        if is_past(deadline, at) then
          values[first + i - 1] = false
        end
      end
    end)
  end
  return values
end
