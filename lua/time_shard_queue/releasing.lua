--@library
-- The early end of leases, which writes no key that a sweeper WATCHes, and runs on a full server.
--@include time_shard

-- Asks for the end of a message's lease; the next take, or a sweeper, applies it.
-- token: the lease's, '' for any holder's; ms: the due time ('': the old one); from_now: '1' if that counts from
-- now. Returns whether that lease holds still; false if what stands there cannot be believed.
local function ask_release(history, consumed, dead, released, id, token, ms, from_now)
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
  local entry = takes .. ' ' .. id
  -- After a removal a full server allows the rest of the script.
  redis.call('ZREM', released, entry)
  redis.call('ZADD', released, due, entry)
  return true
end
