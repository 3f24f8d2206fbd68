--@library
-- The early end of leases, which writes no key that a sweeper WATCHes, and runs on a full server.
--@include time_shard
--@include waking

-- Asks for the end of a message's lease; the next take, or a sweeper, applies it. Wakes sleeping takes if one of
-- them has to come earlier than it knows.
-- token: the lease's, '' for any holder's; ms: the due time ('': the old one); from_now: '1' if that counts from
-- now. Returns whether that lease holds still; false if what stands there cannot be believed.
local function ask_release(history, consumed, dead, released, notifications, id, token, ms, from_now)
  local takes, _, due = read_history(redis.call('HGET', history, id), history)
  if unbelieved or not takes or (token ~= '' and token ~= takes) then
    return false
  end
  if redis.call('SISMEMBER', consumed, id) == 1 or redis.call('ZSCORE', dead, id) then
    return false
  end
  if ms ~= '' then
    due = due_at(ms, from_now)
  end
  local entry, before = takes .. ' ' .. id, first_moment(released)
  -- After a removal a full server allows the rest of the script.
  redis.call('ZREM', released, entry)
  redis.call('ZADD', released, due, entry)
  if tonumber(due) < before then
    wake(notifications)
  end
  return true
end
