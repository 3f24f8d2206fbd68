-- Whether a pending entry is still the delivery that a consumer speaks of. The consumer's name alone
-- does not say so: what was recovered from it may have been delivered to it again since.
--@include shuffle_queue
local function is_held(stream, reader, id, consumer, attempts)
  local found = redis.pcall('XPENDING', stream, reader, id, id, 1)
  if is_error(found) or not found[1] then
    return false
  end
  return found[1][2] == consumer and found[1][4] == tonumber(attempts)
end
